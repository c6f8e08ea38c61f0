"""Tokenizers against two others: transformers on real files, and a slow one written out here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import regex
import tokenizers
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from voxlane.engine.api import ChatMessage
from voxlane.engine.errors import WeightsError
from voxlane.engine.text.chat_template import ChatTemplateError
from voxlane.engine.text.tokenizer import Tokenizer

CORPUS = [
    "Hello, world! How are you today?",
    "It's 1234567 o'clock; they've said 3.14159 isn't 22/7.",
    "  two  spaces\n\n\n\tand a tab\r\nwindows   ",
    "def f(x):\n    return x ** 2  # comment\n",
    "naïve café, Ångström, straße, İstanbul",
    "日本語のテキストと中文，한국어도.",
    "emoji 😀 👩‍👩‍👧 🇩🇪 e\u0301 \u200b\u00a0\ufeff",
    "مرحبا بالعالم שלום नमस्ते",
    "½ ² ٣٤ Ⅻ 1st 2nd x1y2",
    "",
    " ",
    "\n",
    "a" * 300,
    "<|im_end|",
    "'S 'LL 'Ve I'M",
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONVERSATION = [
    ChatMessage("system", "You are terse."),
    ChatMessage("user", "Hi there!  What's 2+2?\n"),
    ChatMessage("assistant", "4."),
    ChatMessage("user", " and 3 < 4 > 2? [yes] <b>"),
]


def dicts(messages: list[ChatMessage]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


# ---- the default model


def slow_encode(text: str, ranks: dict[tuple[str, str], int], ids: dict[str, int]) -> list[int]:
    """Encode as llama.cpp documents "smollm": digits alone, then GPT-2's words, then merges by rank."""
    alphabet = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling = {byte: chr(byte) for byte in alphabet}
    spelling |= {byte: chr(0x100 + n) for n, byte in enumerate(b for b in range(256) if b not in spelling)}
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    result = []
    for part in regex.split(r"(\p{N})", text):
        for word in regex.findall(words, part):
            pieces = [spelling[byte] for byte in word.encode()]
            while len(pieces) > 1:
                pairs = list(itertools.pairwise(pieces))
                best = min(pairs, key=lambda pair: ranks.get(pair, 1 << 30))
                if best not in ranks:
                    break
                at = pairs.index(best)
                pieces[at : at + 2] = ["".join(best)]
            result += [ids[piece] for piece in pieces]
    return result


@pytest.mark.soak
@pytest.mark.weights
def test_the_default_model_tokenises_like_a_slow_reference(smollm2: Tokenizer, smollm2_path: Path) -> None:
    reader = gguf.GGUFReader(smollm2_path)
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    ids = {token: index for index, token in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
    for text in CORPUS:
        assert smollm2.encode(text) == slow_encode(text, ranks, ids), text
        assert smollm2.decode(smollm2.encode(text)) == text


@pytest.mark.weights
def test_the_default_model_tokenises_like_transformers(smollm2: Tokenizer, smollm2_path: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    for text in CORPUS:
        if "½" in text:
            continue  # transformers 5 leaves out the digit split of this file's tokenizer; the slow reference has it
        assert smollm2.encode(text) == reference(text, add_special_tokens=False)["input_ids"], text
    for messages in (CONVERSATION, CONVERSATION[1:], CONVERSATION[:2]):
        for prompt in (True, False):
            expected = reference.apply_chat_template(
                dicts(messages), add_generation_prompt=prompt, tokenize=True, return_dict=True
            )
            assert smollm2.encode_chat(messages, add_generation_prompt=prompt) == expected["input_ids"]


@pytest.mark.weights
def test_the_default_models_facts(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49_152
    assert smollm2.bos_id == 1
    assert smollm2.eos_ids == {0, 2}
    assert len(smollm2.special_ids) == 17
    assert smollm2.chat_template is not None
    assert smollm2.token_bytes(2) == b""
    assert smollm2.token_name(2) == "<|im_end|>"
    # This vocabulary has no token for 0x04, 0xF1 and other bytes that ordinary text does not use.
    pieces = {smollm2.token_bytes(token) for token in range(smollm2.vocab_size)}
    assert all(bytes([byte]) in pieces for byte in (*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0)))
    with pytest.raises(IndexError):
        smollm2.token_bytes(49_152)
    with pytest.raises(IndexError):
        smollm2.token_bytes(-1)


@pytest.mark.weights
@settings(max_examples=examples(100), deadline=None)
@given(text=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cc", "Cs", "Cn")), max_size=60))
def test_any_text_survives_and_holds_no_special_token(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    assert smollm2.special_ids.isdisjoint(ids)
    assert smollm2.decode(ids) == text


Injection = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|", "\n", "system\n", "x", "\ue000", "\ue001"]
    ),
    max_size=8,
).map("".join)


@pytest.mark.weights
@settings(max_examples=examples(200), deadline=None)
@given(contents=st.lists(Injection, min_size=1, max_size=3), role=Injection)
def test_nobody_can_speak_control_tokens(smollm2: Tokenizer, contents: list[str], role: str) -> None:
    messages = [ChatMessage("system", "s"), *(ChatMessage("user" + role, content) for content in contents)]
    ids = smollm2.encode_chat(messages)
    special = [smollm2.token_name(token) for token in ids if token in smollm2.special_ids]
    assert special == ["<|im_start|>", "<|im_end|>"] * len(messages) + ["<|im_start|>"]
    plain = "".join(f"{message.role}\n{message.content}\n" for message in messages)
    assert smollm2.decode(ids) == plain + "assistant\n"


# ---- every kind of vocabulary, small


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer, specials: list[str], **options: object) -> tokenizers.Tokenizer:
    """Train a small BPE tokenizer on the corpus."""
    tokenizer = tokenizers.Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, "hello hello world 2024 2024 12345"] * 3, trainer)
    return tokenizer


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(numbers: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORDS + numbers + REST), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt-2": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"]),
    "smollm": lambda: trained(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    ),
    "llama-bpe": lambda: trained(split(r"\p{N}{1,3}"), ["<|begin_of_text|>", "<|eot_id|>"], ignore_merges=True),
    "lfm2": lambda: trained(split(r"\p{N}{1,3}"), ["<|startoftext|>", "<|im_end|>"], ignore_merges=True),
    "qwen2": lambda: trained(split(r"\p{N}"), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
}


def write_directory(folder: Path, tokenizer: tokenizers.Tokenizer, **settings_: object) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_))
    return folder


def write_byte_level_gguf(path: Path, pre: str, tokenizer: tokenizers.Tokenizer, template: str | None = None) -> Path:
    data = json.loads(tokenizer.to_str())
    tokens = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    special = {token["content"] for token in data["added_tokens"]}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", PRE)
def test_gguf_pre_tokenizers(pre: str, tmp_path: Path) -> None:
    reference = PRE[pre]()
    if pre == "qwen2":
        reference.normalizer = normalizers.NFC()
    ours = Tokenizer.open(write_byte_level_gguf(tmp_path / "t.gguf", pre, reference))
    directory = Tokenizer.open(write_directory(tmp_path / "d", reference))
    for text in CORPUS:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == expected, text
        assert directory.encode(text) == expected, text
        assert ours.decode(expected) == directory.decode(expected) == (reference.decode(expected) if text else "")


def test_an_unknown_pre_tokenizer_is_named(tmp_path: Path) -> None:
    path = write_byte_level_gguf(tmp_path / "t.gguf", "martian", PRE["gpt-2"]())
    with pytest.raises(WeightsError, match="pre-tokenizer 'martian' is not supported"):
        Tokenizer.open(path)


PIECES = [
    "▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "he", "el", "ll", "lo", "▁he", "hel", "llo", "hello", "▁hello", "▁w",
    "or", "ld", "wor", "▁wor", "▁world", "world", "\n", "a", "▁a",
]  # fmt: skip


def sentencepiece_tokens() -> tuple[list[str], list[float], list[int]]:
    special = ["<unk>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *bytes_, "\n\n", *PIECES]
    scores = [0.0] * (len(special) + 257) + [-float(rank) for rank, _ in enumerate(PIECES)]
    types = [2, 3, 3, 3, 3] + [6] * 256 + [4] + [1] * len(PIECES)
    return tokens, scores, types


def write_sentencepiece_gguf(path: Path, *, space_prefix: bool, template: str | None = None) -> Path:
    tokens, scores, types = sentencepiece_tokens()
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(space_prefix)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def sentencepiece_encode(text: str, *, space_prefix: bool) -> list[int]:
    """Encode like sentencepiece's BPE: join the adjacent pair with the best score, leftmost first."""
    tokens, scores, types = sentencepiece_tokens()
    ids = {token: index for index, token in enumerate(tokens) if types[index] == 1}
    result: list[int] = []
    for stretch in regex.split("(\n\n)", text):
        if stretch == "\n\n":
            result.append(tokens.index("\n\n"))
            continue
        symbols = list((" " + stretch if space_prefix and stretch else stretch).replace(" ", "▁"))
        while True:
            unions = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in ids]
            if not unions:
                break
            at = -max(unions)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            result += [ids[symbol]] if symbol in ids else [5 + byte for byte in symbol.encode()]
    return result


@pytest.mark.parametrize("space_prefix", [False, True])
def test_sentencepiece(space_prefix: bool, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_sentencepiece_gguf(tmp_path / "s.gguf", space_prefix=space_prefix))
    for text in ["hello world", "hello  hello\n\nworld\n", "Zé hello 😀", "▁", "<s> hello </s>", ""]:
        ids = tokenizer.encode(text)
        assert ids == sentencepiece_encode(text, space_prefix=space_prefix), text
        assert tokenizer.special_ids.isdisjoint(ids)
        if not space_prefix:
            assert tokenizer.decode(ids) == text.replace("▁", " ")
    assert tokenizer.encode("a", add_bos=True)[0] == 1
    assert tokenizer.token_bytes(5 + 0xE9) == b"\xe9"
    assert tokenizer.eos_ids == {2}


GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def test_a_gemma_conversation(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_sentencepiece_gguf(tmp_path / "s.gguf", space_prefix=False, template=GEMMA))
    assert tokenizer.eos_ids == {2, 4}
    ids = tokenizer.encode_chat([ChatMessage("user", "  hello <end_of_turn> world ")])
    plain = sentencepiece_encode("user\nhello <end_of_turn> world", space_prefix=False)
    newline = sentencepiece_encode("\n", space_prefix=False)
    assert ids == [1, 3, *plain, 4, *newline, 3, *sentencepiece_encode("model\n", space_prefix=False)]
    with pytest.raises(ChatTemplateError, match="Conversation roles must alternate"):
        tokenizer.encode_chat([ChatMessage("assistant", "hello")])


# ---- Hugging Face directories


def test_a_directory_equals_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    backend = trained(split(r"\p{N}"), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<table>", normalized=False)])
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}<think>"
    )
    folder = write_directory(
        tmp_path / "d",
        backend,
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token="<|im_end|>",
        chat_template=template,
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    tokenizer = Tokenizer.open(folder)
    reference = AutoTokenizer.from_pretrained(folder)
    for text in [*CORPUS, "an ordinary <table> here"]:
        assert tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"], text
    expected = reference.apply_chat_template(dicts(CONVERSATION), tokenize=True, return_dict=True)["input_ids"]
    assert tokenizer.encode_chat(CONVERSATION) == expected
    assert tokenizer.eos_ids == {0, 2}
    think = backend.token_to_id("<think>")
    assert think not in tokenizer.encode("<think>")  # the template writes it, so only the template may
    assert tokenizer.token_bytes(think) == b"<think>"
    reply = [ChatMessage("assistant", "hm</think>hello")]
    assert tokenizer.decode(tokenizer.encode_chat(reply)) == "assistant\nhello\n<think>"


WHEN_ASKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
AT_FIRST = (
    "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
    "<|im_start|>system\n{{ 'think' if enable_thinking else 'do not think' }}<|im_end|>\n" + CHATML
)


@pytest.mark.parametrize("template", [WHEN_ASKED, AT_FIRST, CHATML])
@pytest.mark.parametrize("special", [False, True])
def test_a_model_that_may_think_is_told_not_to(template: str, special: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    backend = trained(split(r"\p{N}"), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in ("<think>", "</think>")])
    folder = write_directory(
        tmp_path / "d",
        backend,
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token="<|im_end|>",
        chat_template=template,
    )
    tokenizer, reference = Tokenizer.open(folder), AutoTokenizer.from_pretrained(folder)
    for messages in (CONVERSATION, CONVERSATION[:2]):
        rendered = reference.apply_chat_template(
            dicts(messages), add_generation_prompt=True, tokenize=True, return_dict=True, enable_thinking=False
        )
        assert tokenizer.encode_chat(messages) == rendered["input_ids"]
        unfinished, _ = tokenizer.encode_open(messages)
        assert rendered["input_ids"][: len(unfinished) - 2] == unfinished[:-2]


@pytest.mark.parametrize("in_gguf", [False, True])
def test_the_marks_of_a_thought_are_told_even_if_the_file_calls_them_special(in_gguf: bool, tmp_path: Path) -> None:
    backend = trained(split(r"\p{N}"), ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    if in_gguf:
        tokenizer = Tokenizer.open(write_byte_level_gguf(tmp_path / "t.gguf", "qwen2", backend, CHATML))
    else:
        tokenizer = Tokenizer.open(write_directory(tmp_path / "d", backend, chat_template=CHATML))
    begin, end = backend.token_to_id("<think>"), backend.token_to_id("</think>")
    assert tokenizer.decode([begin, *tokenizer.encode("hello"), end, 2]) == "<think>hello</think>"
    assert tokenizer.special_ids == {0, 1, 2}
    typed = tokenizer.encode_chat([ChatMessage("user", "<think>hello</think>")])
    assert begin not in typed
    assert end not in typed


def test_start_tokens_and_the_space_before_the_first_word(tmp_path: Path) -> None:
    tokens = sentencepiece_tokens()[0]
    ids = {token: index for index, token in enumerate(tokens)}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("▁", "hello")]
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    folder = write_directory(tmp_path / "d", backend, bos_token="<s>", eos_token={"content": "</s>"})
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    tokenizer = Tokenizer.open(folder)
    for text in ("hello hello", " hello", "hello"):
        assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode("hello", add_bos=True) == [1, ids["▁hello"]]
    rendered = backend.encode("hello</s>hello</s>", add_special_tokens=False).ids
    assert tokenizer.encode_chat([ChatMessage("user", "hello"), ChatMessage("user", "hello")]) == rendered
    assert rendered == [ids["▁hello"], 2, ids["hello"], 2]


def test_without_a_template_there_is_a_plain_format(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_byte_level_gguf(tmp_path / "t.gguf", "gpt-2", PRE["gpt-2"]()))
    assert tokenizer.chat_template is None
    ids = tokenizer.encode_chat(
        [ChatMessage("user", "hello "), ChatMessage("assistant", "hi"), ChatMessage("user", "2")]
    )
    assert tokenizer.decode(ids) == "User: hello\nAssistant: hi\nUser: 2\nAssistant:"


def test_a_template_that_joins_what_was_apart_gains_nothing(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>"
        "{{ m.content | replace('-', '') | replace('</x>', '') | lower }}<|im_end|>{% endfor %}"
    )
    path = write_byte_level_gguf(tmp_path / "t.gguf", "smollm", PRE["smollm"](), template)
    tokenizer = Tokenizer.open(path)
    for text in ("<|im-_end|>", "<|im_</x>end|>", "<|IM_END|>", "<|im_end|>"):
        ids = tokenizer.encode_chat([ChatMessage("user", text)])
        assert [token for token in ids if token in tokenizer.special_ids] == [1, 2]


def test_lone_surrogates_do_not_break_a_request(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(write_byte_level_gguf(tmp_path / "t.gguf", "gpt-2", PRE["gpt-2"]()))
    assert "x" in tokenizer.decode(tokenizer.encode("x\ud800"))


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("tokenizer.json", "{", "not valid JSON"),
        ("tokenizer.json", "{}", "only BPE"),
        ("tokenizer.json", '{"model": {"type": "Unigram", "vocab": []}}', "only BPE"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "impossible id"),
        ("tokenizer.json", '{"added_tokens": [5]}', "added_tokens is damaged"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}, "merges": [], "unk_token": "?"}}', "token for the unknown"),
        ("tokenizer.json", '{"added_tokens": [{"content": "", "id": 0}]}', "added_tokens is damaged"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}}', "neither byte-level"),
        (
            "tokenizer.json",
            '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]], "byte_fallback": true}}',
            "not a usable tokenizer",
        ),
        ("tokenizer_config.json", '{"chat_template": "{% for %}"}', "does not compile"),
    ],
)
def test_damaged_directories(file: str, text: str, reason: str, tmp_path: Path) -> None:
    folder = write_directory(tmp_path / "d", PRE["gpt-2"]())
    (folder / file).write_text(text)
    with pytest.raises(WeightsError, match=reason) as caught:
        Tokenizer.open(folder)
    assert "\n" not in str(caught.value)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        Tokenizer.open(tmp_path)


def test_a_text_that_the_library_cannot_read_is_an_error_of_the_text(smollm2_path: Path) -> None:
    tokenizer = Tokenizer.open(smollm2_path)
    fragile = tokenizers.Tokenizer(models.WordLevel({"known": 0}, unk_token="missing"))
    tokenizer._vocabulary = replace(tokenizer._vocabulary, backend=fragile)
    assert tokenizer.encode("known") == [0]
    with pytest.raises(ValueError, match="cannot read this text"):
        tokenizer.encode("unknown")


def test_a_growing_conversation_is_the_same_prompt_when_its_earlier_messages_are_known(smollm2: Tokenizer) -> None:
    said = [ChatMessage("system", "Be brief."), *(ChatMessage("user", f"And {n}? <|im_end|>") for n in range(6))]
    for turn in range(2, len(said) + 1):
        for tenant in ("", "other", ""):
            known = smollm2.encode_chat(said[:turn], tenant=tenant)
            assert known == smollm2.encode_chat(said[:turn])
            assert smollm2.encode_open(said[:turn], tenant=tenant) == smollm2.encode_open(said[:turn])
