"""A transcript that grows, and its output formats: plain text, JSON, SRT, WebVTT. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType, field

from voxlane.engine.api import Segment, Word, Words
from voxlane.server.audio.languages import name_of_language

CUE_SECONDS = 7.0
"""A subtitle stays on the screen for at most this long, as broadcasters do it."""

CUE_CHARACTERS = 84
"""A subtitle holds at most two lines of 42 characters, as broadcasters do it."""

LEAST_LOGPROB = -9999.0
"""JSON has no minus infinity; OpenAI writes this instead."""


class Transcript(Struct):
    """One transcript. All that `add` and `finish` return, joined, is its text."""

    text: str = ""
    tail: str = ""  # words that may still change
    heard_s: float = 0.0
    segments: list[Segment] = field(default_factory=list)
    _space: str = ""  # white space that is written only if text follows

    def add(self, words: Words) -> str:
        """Take more words; return the new text that will not change."""
        self.tail = words.tail
        self.heard_s = max(self.heard_s, words.heard_s)
        self.segments.extend(words.segments)
        return self._settle(words.settled)

    def finish(self) -> str:
        """Settle the tail at the end of the audio; return the new text."""
        tail, self.tail = self.tail, ""
        return self._settle(tail)

    def _settle(self, settled: str) -> str:
        new = self._space + settled if self.text else settled.lstrip()
        delta = new.rstrip()
        self._space = new[len(delta) :] if delta or self.text else ""
        self.text += delta
        return delta

    @property
    def language(self) -> str:
        """Return the language of most of the speech, or "" if there is none."""
        seconds: dict[str, float] = {}
        for segment in self.segments:
            seconds[segment.language] = seconds.get(segment.language, 0.0) + segment.end_s - segment.start_s
        return max(seconds, key=lambda language: seconds[language], default="")


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle."""

    start_s: float
    end_s: float
    text: str


def cues(segment: Segment) -> Iterator[Cue]:
    """Yield a segment as subtitles: whole if it fits, otherwise cut between words, after punctuation if possible."""
    text = segment.text.strip()
    fits = len(text) <= CUE_CHARACTERS and segment.end_s - segment.start_s <= CUE_SECONDS
    if not text:
        return
    if fits or not segment.words:
        yield Cue(segment.start_s, segment.end_s, text)
        return
    words: Sequence[Word] = segment.words
    while words:
        count = _cue_words(words)
        said = " ".join(word.text.strip() for word in words[:count])
        yield Cue(words[0].start_s, words[count - 1].end_s, said)
        words = words[count:]


def _cue_words(words: Sequence[Word]) -> int:
    """Return how many of the words the next cue takes."""
    length, most, best = -1, 0, 0
    for count, word in enumerate(words, 1):
        text = word.text.strip()
        length += 1 + len(text)
        if length > CUE_CHARACTERS or word.end_s - words[0].start_s > CUE_SECONDS:
            break
        most = count
        if text.endswith((".", "!", "?", ",", ";", ":")):
            best = count
    if most == len(words):
        return most
    # A break after punctuation may make the cue shorter, but not shorter than a third.
    return best if best * 3 >= most and best else max(most, 1)


def srt(all_cues: Iterable[Cue], first: int = 1) -> str:
    """Return SubRip text."""
    return "".join(
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{_cue_text(cue)}\n\n"
        for number, cue in enumerate(all_cues, first)
    )


VTT_HEADER = "WEBVTT\n\n"


def vtt(all_cues: Iterable[Cue]) -> str:
    """Return WebVTT cues; a file starts with VTT_HEADER."""
    return "".join(f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{_vtt_text(cue)}\n\n" for cue in all_cues)


def _cue_text(cue: Cue) -> str:
    # A line break would end the cue.
    return " ".join(cue.text.split())


def _vtt_text(cue: Cue) -> str:
    return _cue_text(cue).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    whole, fraction = divmod(milliseconds, 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{fraction:03}"


class SegmentReply(Struct, kw_only=True):
    """A segment in the form of OpenAI's verbose_json, without its token numbers."""

    id: Annotated[int, Meta(description="Its number, from 0.")]
    seek: Annotated[int, Meta(description="Its start, in hundredths of a second.")]
    start: Annotated[float, Meta(description="In seconds.")]
    end: Annotated[float, Meta(description="In seconds.")]
    text: str
    tokens: Annotated[list[Any], Meta(max_length=0, description="Always empty.")] = field(default_factory=list)
    temperature: Annotated[float, Meta(description="Always 0.")] = 0.0
    avg_logprob: Annotated[float, Meta(description="How sure the model was: 0 is certain.")]
    compression_ratio: Annotated[float, Meta(description="High where the same words come again and again.")]
    no_speech_prob: Annotated[float, Meta(description="How likely there is no speech.")]

    @classmethod
    def of(cls, number: int, segment: Segment) -> Self:
        """Return a segment as it is sent."""
        return cls(
            id=number,
            seek=round(segment.start_s * 100),
            start=round(segment.start_s, 3),
            end=round(segment.end_s, 3),
            text=segment.text,
            avg_logprob=max(segment.logprob, LEAST_LOGPROB),
            compression_ratio=_compression(segment.text),
            no_speech_prob=segment.no_speech,
        )


class WordReply(Struct, kw_only=True):
    """A word in the form of OpenAI's verbose_json."""

    word: str
    start: Annotated[float, Meta(description="In seconds.")]
    end: Annotated[float, Meta(description="In seconds.")]


class DurationUsage(Struct, kw_only=True):
    """How much was heard."""

    type: Literal["duration"] = "duration"
    seconds: Annotated[float, Meta(description="Length of the recording.")]


class VerboseTranscription(Struct, kw_only=True):
    """OpenAI's verbose_json."""

    task: Literal["transcribe", "translate"] = "transcribe"
    language: Annotated[str, Meta(description="Its English name, as `english`; empty if nothing was said.")]
    duration: Annotated[float, Meta(description="Length of the recording, in seconds.")]
    text: str
    words: Annotated[list[WordReply] | UnsetType, Meta(description="Where the times of words were asked for.")] = UNSET
    segments: Annotated[
        list[SegmentReply] | UnsetType, Meta(description="Unless only the times of words were asked for.")
    ] = UNSET
    usage: DurationUsage | UnsetType = UNSET


def verbose(transcript: Transcript, duration_s: float, *, segments: bool, words: bool) -> VerboseTranscription:
    """Return OpenAI's verbose_json without its usage; the language is an English name."""
    return VerboseTranscription(
        language=name_of_language(transcript.language),
        duration=round(duration_s, 3),
        text=transcript.text,
        words=[_word(word) for segment in transcript.segments for word in segment.words] if words else UNSET,
        segments=[SegmentReply.of(*one) for one in enumerate(transcript.segments)] if segments else UNSET,
    )


def _word(word: Word) -> WordReply:
    return WordReply(word=word.text.strip(), start=round(word.start_s, 3), end=round(word.end_s, 3))


def _compression(text: str) -> float:
    data = text.encode()
    return round(len(data) / len(zlib.compress(data)), 3)
