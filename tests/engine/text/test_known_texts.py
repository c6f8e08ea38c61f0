"""Tokens of texts that were read before."""

from __future__ import annotations

from voxlane.engine.text.known_texts import ENTRY_BYTES, MAX_TEXT, KnownTexts


class Letters:
    """A tokenizer whose tokens are letters; it notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def encode(self, texts: list[str]) -> list[list[int]]:
        self.asked.append(texts)
        return [list(map(ord, text)) for text in texts]


def letters(text: str) -> list[int]:
    return list(map(ord, text))


def test_only_new_texts_are_encoded_and_all_of_them_in_one_call() -> None:
    tokenizer = Letters()
    known = KnownTexts(tokenizer.encode)
    assert [*map(list, known.encode(["be brief", "hello"], "t"))] == [letters("be brief"), letters("hello")]
    found = known.encode(["be brief", "hello", "", "hi", "hi"], "t")
    assert [*map(list, found)] == [*map(letters, ("be brief", "hello", "", "hi", "hi"))]
    assert tokenizer.asked == [["be brief", "hello"], ["", "hi"]]
    assert [*map(list, known.encode(["", "hi"], "t"))] == [[], letters("hi")]
    assert len(tokenizer.asked) == 2


def test_a_tenant_gains_nothing_from_the_texts_of_another() -> None:
    tokenizer = Letters()
    known = KnownTexts(tokenizer.encode)
    for tenant in ("a", "b", "a"):
        known.encode(["secret"], tenant)
    assert tokenizer.asked == [["secret"], ["secret"]]


def test_the_oldest_texts_are_forgotten_and_huge_ones_not_kept() -> None:
    tokenizer = Letters()
    known = KnownTexts(tokenizer.encode, most=2 * (2 * 4 + ENTRY_BYTES))
    for text in ("aaaa", "bbbb", "cccc", "bbbb", "aaaa"):
        known.encode([text], "t")
    assert tokenizer.asked == [["aaaa"], ["bbbb"], ["cccc"], ["aaaa"]]
    huge = KnownTexts(tokenizer.encode)
    for _ in range(2):
        assert len(huge.encode(["x" * (MAX_TEXT + 1)], "t")[0]) == MAX_TEXT + 1
    assert len(tokenizer.asked) == 6
