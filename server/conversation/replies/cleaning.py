"""Filter a chat model's output to its reply: no thoughts, no control tokens, no repeated sentences.

Models write text that no person should hear: `<think>` and its content, calls of tools that do not exist, the
end-of-turn token and then the user's next turn. Small models repeat sentences. All of it is removed as it comes, before
the text is shown, spoken or remembered, so that a text position means the same everywhere. Pure. Other tags, `<br>` or
`a < b`, stay: the engine decides how to read them aloud.

A small model that was given a tool's result may write its whole answer like one, in `<tool_response>`. At the beginning
of a reply that tag alone is removed.
"""

from __future__ import annotations

import re

from voxlane.server.conversation.replies.clauses import Grade, grade

LEAST_REPEATED_WORDS = 4
"""A shorter sentence may be said twice: "Thank you." "Row, row, row." """

MOST_REPEATED = 2
"""Repeated sentences in a row that end a reply: the model is in a loop."""

_LONGEST_MARK = 40

_THOUGHTS = ("think", "thinking", "thought", "reasoning", "scratchpad")
_CALLS = ("tool_call", "tool_calls", "tools", "function_call", "function_calls")
_RESULTS = ("tool_response", "tool_responses", "tool_result", "tool_results", "function_response")
_HIDING = (*_THOUGHTS, *_CALLS, *_RESULTS)
"""Tags that are removed together with their content."""

_BARE = (
    "file_sep", "repo_name", "fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "bos", "eos", "pad", "unk", "s",
    "mask", "end_of_turn", "start_of_turn", "end_of_text", "eot_id",
)  # fmt: skip
"""Control tokens that some vocabularies spell like tags."""

_TURNS = frozenset({
    "im_end", "im_start", "endoftext", "end_of_text", "eot_id", "eom_id", "end", "user", "system", "start_header_id",
    "start_of_turn", "end_of_turn", "end_of_sentence", "eos",
})  # fmt: skip
"""Control tokens that end a turn: the text after them is not the reply."""

_MARK = re.compile(
    rf"<(?P<closing>/?)(?P<hiding>{'|'.join(_HIDING)})>|</?(?P<bare>{'|'.join(_BARE)})>"
    rf"|<[|｜]/?(?P<control>[\w▁-]{{1,{_LONGEST_MARK - 5}}})[|｜]>",
    re.IGNORECASE,
)
_BEGUN_CONTROL = re.compile(rf"<[|｜]/?[\w▁-]{{0,{_LONGEST_MARK - 5}}}[|｜]?\Z")
_SPELT = tuple(f"<{slash}{name}>" for name in (*_HIDING, *_BARE) for slash in ("", "/"))

_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")
_MARKS = re.compile(r"[^\w\s]|_")


class TagFilter:
    """Removes control tokens, and the content of the tags in `_HIDING`."""

    def __init__(self) -> None:
        self._held = ""  # may be the start of a mark
        self._inside = ""  # the tag whose content is being removed
        self._begun = False  # some text was let through
        self._called = False  # a call was removed: a result after it is invented
        self.over = False  # the model has ended its turn

    def push(self, text: str) -> str:
        """Add output; return what of it is certainly reply text."""
        self._held += text
        shown = ""
        while not self.over and (found := _MARK.search(self._held)) is not None:
            shown += self._let_through(self._held[: found.start()])
            self._held = self._held[found.end() :]
            self._apply_mark(found)
        if self.over:
            self._held = ""
        certain = len(self._held) - _begun_mark(self._held)
        shown += self._let_through(self._held[:certain])
        self._held = self._held[certain:]
        return shown

    def finish(self) -> str:
        """Return what was held back."""
        held, self._held = self._held, ""
        return self._let_through(held)

    def _apply_mark(self, found: re.Match[str]) -> None:
        name = (found["hiding"] or found["bare"] or found["control"]).lower().replace("▁", "_")
        if self._inside:
            if name == self._inside and found["closing"]:
                self._inside = ""
        elif found["hiding"]:
            is_reply = name in _RESULTS and not self._begun and not self._called
            self._inside = "" if found["closing"] or is_reply else name
            self._called = self._called or name in _CALLS
        elif name in _TURNS and self._begun:
            self.over = True

    def _let_through(self, text: str) -> str:
        if self._inside:
            return ""
        if not self._begun:  # drop the white space between a thought and the reply
            text = text.lstrip()
        self._begun = self._begun or bool(text)
        return text


def _begun_mark(text: str) -> int:
    """Return the length of the end of `text` that may be the start of a mark."""
    at = text.rfind("<", max(0, len(text) - _LONGEST_MARK))
    if at < 0:
        return 0
    end = text[at:].lower()
    begun = any(mark.startswith(end) for mark in _SPELT) or _BEGUN_CONTROL.match(end) is not None
    return len(end) if begun else 0


class RepeatFilter:
    """Removes sentences that were said before in the same reply."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._sentence = ""  # the current one, so far
        self._shown = 0  # its characters that were let through
        self._at = 0  # where its last word begins; the text before that was searched for its end
        self._repeated = 0  # repeated sentences in a row
        self.over = False  # the model is in a loop

    def push(self, text: str) -> str:
        """Add reply text; return what of it may be shown. Text that may become a repeated sentence is held back."""
        self._sentence += text
        shown = ""
        while not self.over and (end := self._end()) is not None:
            shown += self._close(end)
        if self.over or (not self._shown and self._may_be_said()):
            return shown
        return shown + self._show(len(self._sentence))

    def finish(self) -> str:
        """Return the text that was held back, unless it is a repeat."""
        return "" if self.over else self._close(len(self._sentence))

    def _close(self, end: int) -> str:
        """Return a complete sentence, or "" if it is a repeat."""
        plain = _plain(self._sentence[:end])
        if plain in self._said and not self._shown:
            self._repeated += 1
            self.over = self._repeated >= MOST_REPEATED
            shown = ""
        else:
            shown = self._show(end)
            if len(plain.split()) >= LEAST_REPEATED_WORDS:
                self._repeated = 0
                self._said.add(plain)
        self._sentence, self._shown, self._at = self._sentence[end:], 0, 0
        return shown

    def _show(self, end: int) -> str:
        shown, self._shown = self._sentence[self._shown : end], max(self._shown, end)
        return shown

    def _may_be_said(self) -> bool:
        """Return whether the sentence so far is the beginning of one that was said before."""
        begun = _plain(self._sentence)
        return any(said.startswith(begun) for said in self._said)

    def _end(self) -> int | None:
        """Return where the sentence ends, white space included; None while that is not known."""
        for found in _WORD.finditer(self._sentence, self._at):
            gap = _SPACE.match(self._sentence, found.end())
            assert gap is not None  # it may be empty
            self._at = found.start()
            if gap.end() == len(self._sentence):
                return None  # depends on the next character
            if "\n" in gap[0] or grade(found[0], self._sentence[gap.end()]) >= Grade.SENTENCE:
                return gap.end()
        return None


def _plain(text: str) -> str:
    """Return the words of a text in lower case, without punctuation."""
    return " ".join(_MARKS.sub("", text.lower()).split())


class ReplyCleaner:
    """Both filters for one reply."""

    def __init__(self, *, spoken: bool) -> None:
        """Remove repeated sentences only if the reply is `spoken`."""
        self._tags = TagFilter()
        self._repeats = RepeatFilter() if spoken else None

    @property
    def over(self) -> bool:
        """Whether no further output belongs to the reply."""
        return self._tags.over or (self._repeats is not None and self._repeats.over)

    def push(self, text: str) -> str:
        """Add output; return what of it is certainly reply text."""
        text = self._tags.push(text)
        return self._repeats.push(text) if self._repeats is not None else text

    def finish(self) -> str:
        """Return the rest of the reply."""
        text = self._tags.finish()
        return self._repeats.push(text) + self._repeats.finish() if self._repeats is not None else text
