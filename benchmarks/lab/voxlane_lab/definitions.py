"""What each figure of the lab means, and what it does not say. Pure.

u_on and u_off are the first voiced sample of a step and the place behind its last, known from how the clip was made.
*Old* is the response that sounds at u_on; a *new* response is one whose first sound arrives after u_on. Audible is a
frame of 10 ms above -50 dB of full scale of what the loudspeaker played. A figure is None where a step does not
measure it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voxlane_lab.values import Meaning

Kind = Literal["number", "flag", "count"]
Value = float | bool | None


@dataclass(frozen=True, slots=True)
class Metric:
    """What a figure is."""

    unit: str  # ms, words, responses; "" for a flag
    sentence: str  # the definition
    what_it_does_not_say: str
    kind: Kind
    means: tuple[Meaning, ...]  # the steps that measure it
    better: str = "lower"


_STOP: tuple[Meaning, ...] = ("stop",)
_NOTHING: tuple[Meaning, ...] = ("nothing",)
_BOTH: tuple[Meaning, ...] = ("stop", "nothing")
_ASKED: tuple[Meaning, ...] = ("turn", "stop")
_ALL: tuple[Meaning, ...] = ("turn", "stop", "nothing")

METRICS: dict[str, Metric] = {
    "yield_ms": Metric(
        "ms",
        "From u_on to behind the last audible sample of old before its first silence of 200 ms, if it was cut short.",
        "It has no value where old ended by itself, went on for more than 3 s after u_off, or sounded through to u_off "
        "of a step of 2 s or more: see missed and talk_over_ms. A pause of the line in old looks like yielding.",
        "number",
        _STOP,
    ),
    "mute_ms": Metric(
        "ms",
        "From u_on to the first tick of 20 ms, within 3 s of u_off, that plays nothing of old although it is not over.",
        "It does not say whether old was stopped, held, or ran dry because the server or the line was slow.",
        "number",
        _BOTH,
    ),
    "duck_ms": Metric(
        "ms",
        "From u_on to the moment at which the dialect first lowers the loudspeaker's volume.",
        "Only dialects that can lower a loudspeaker have it; a server that lowers the sound that it sends is not seen.",
        "number",
        _BOTH,
    ),
    "pause_ms": Metric(
        "ms",
        "The longest time after u_on in which nothing of old was played, between two of its samples; 0: there is none.",
        "It does not tell a pause that the server meant from one of the line, and silence that is sent is no pause.",
        "number",
        _NOTHING,
    ),
    "skipped_ms": Metric(
        "ms",
        "The sound of old that was passed over after u_on when old went on.",
        "Sound that the server left out before it sent anything of it is not seen.",
        "number",
        _NOTHING,
    ),
    "repeated_ms": Metric(
        "ms",
        "The sound of old that was played a second time after u_on when old went on.",
        "Words that are said again with another sound are not seen.",
        "number",
        _NOTHING,
    ),
    "false_stop": Metric(
        "",
        "Whether old ended early, within 3 s of a sound of the person that means nothing, and did not go on within the "
        "time of an answer.",
        "Where the dialect does not say that a response is complete, an old that ends in silence of its own has no "
        "value.",
        "flag",
        _NOTHING,
    ),
    "missed": Metric(
        "",
        "Whether old went on to its own end, or for more than 3 s after u_off, although the person interrupted.",
        "An old that ends by itself less than 1 s after u_on has no value.",
        "flag",
        _STOP,
    ),
    "talk_over_ms": Metric(
        "ms",
        "How long old is audible while the person's voice is, within the step.",
        "It grows with the length of what the person says; yield_ms does not.",
        "number",
        _STOP,
    ),
    "response_ms": Metric(
        "ms",
        "From u_off to the first audible sample of the first new response that becomes audible after u_off.",
        "It does not say whether the answer is right. Without names of responses, an answer that follows old without a "
        "break is not seen.",
        "number",
        _ASKED,
    ),
    "first_byte_ms": Metric(
        "ms",
        "From u_off to the arrival of the first sound of the response that response_ms measures.",
        "The first sound may be silence, and it is not yet heard.",
        "number",
        _ASKED,
    ),
    "cut_off": Metric(
        "",
        "Whether a new response becomes audible or begins to arrive before u_off, in a step with a pause of 300 ms.",
        "It does not say whether the person would have minded.",
        "flag",
        _ASKED,
    ),
    "split_turns": Metric(
        "responses",
        "How many new responses begin between u_on and the next step, in a step with a pause of 300 ms inside.",
        "One is right. It does not say which of them answered the whole turn.",
        "count",
        _ASKED,
    ),
    "stale_ms": Metric(
        "ms",
        "How long old is audible after its first silence of 200 ms that follows u_on.",
        "Without names of responses, stale sound is found only if it begins before u_off + 150 ms or was received "
        "before.",
        "number",
        _STOP,
    ),
    "stale_wire_ms": Metric(
        "ms",
        "The length of old's sound that arrives after the server itself has ended old.",
        "A client that obeys the dialect does not play it. Dialects without names of responses do not have it.",
        "number",
        _STOP,
    ),
    "answered_twice": Metric(
        "",
        "Whether a second new response, audible for 300 ms or more, begins after u_off and before the next step.",
        "Without names of responses, an answer with a break of 300 ms inside counts as two.",
        "flag",
        _ASKED,
    ),
    "unanswered": Metric(
        "",
        "Whether no new response becomes audible within the scenario's answer_s after u_off.",
        "It has no value where the next turn begins, or the call ends, before that time is over.",
        "flag",
        _ASKED,
    ),
    "unasked": Metric(
        "",
        "Whether a new response, audible for 300 ms or more, begins after a sound that means nothing, while the agent "
        "was silent and owed no answer.",
        "An agent that speaks up by itself after a silence is not told from one that answers a cough.",
        "flag",
        _NOTHING,
    ),
    "memory_wrong": Metric(
        "",
        "Whether the number that the agent names differs by more than one from the last number that was played.",
        "Both numbers are what a recogniser understood; a number that is not understood gives no value.",
        "flag",
        _ASKED,
    ),
    "history_extra_words": Metric(
        "words",
        "How many numbers of a counting text the server's history keeps beyond the last one that was played.",
        "Only dialects that show their history have it, and what was played is what a recogniser understood.",
        "count",
        _ASKED,
    ),
    "history_missing_words": Metric(
        "words",
        "How many numbers of a counting text were played that the server's history does not keep.",
        "Only dialects that show their history have it, and what was played is what a recogniser understood.",
        "count",
        _ASKED,
    ),
    "floor_ms": Metric(
        "ms",
        "From u_on to the first moment from which, for 200 ms, the person and the agent do not sound together.",
        "It does not say which of the two gave way.",
        "number",
        _STOP,
    ),
    "late_ms": Metric(
        "ms",
        "How late the tester's worst tick was during the step and its answer.",
        "It is about the tester, not about the server.",
        "number",
        _ALL,
    ),
}
"""All figures, by their names."""
