"""A scenario: what the person says and when, over which line, and which figures must be met. Read from TOML. Pure.

The structs are the one description of the file: they check it, and `schema()` gives editors the same rules.
"""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voxlane_lab.checking import WrongShape, checked
from voxlane_lab.errors import LabError
from voxlane_lab.values import Meaning

Seconds = Annotated[float, Meta(ge=0, le=600)]
Milliseconds = Annotated[float, Meta(ge=0, le=10_000)]
Decibels = Annotated[float, Meta(ge=-90, le=40)]
Share = Annotated[float, Meta(ge=0, le=1)]
Range = Annotated[
    tuple[Seconds, Seconds], Meta(extra_json_schema={"description": "from, to: a moment is drawn between"})
]


class Noise(Struct, forbid_unknown_fields=True, frozen=True):
    """Sound behind the person, all the time."""

    bed: Annotated[str, Meta(min_length=1, description="white, pink, cafe, street, television, music, hum")]
    snr_db: Annotated[Decibels, Meta(description="how much louder the person is")] = 20.0


class Echo(Struct, forbid_unknown_fields=True, frozen=True):
    """The loudspeaker heard by the microphone."""

    level_db: Annotated[Decibels, Meta(description="loudness of the echo against what is played")] = -20.0
    delay_ms: Milliseconds = 60.0
    room: Annotated[bool, Meta(description="a small room instead of one reflection")] = False


class User(Struct, forbid_unknown_fields=True, frozen=True):
    """The person."""

    voice: Annotated[str, Meta(description="kokoro:NAME, or any: another voice in each repeat")] = "any"
    level_db: Annotated[Decibels, Meta(description="loudness of the voice in dB of full scale")] = -23.0
    noise: Noise | None = None


class LineConditions(Struct, forbid_unknown_fields=True, frozen=True):
    """What lies between the person and the server, each way, beside the real network."""

    delay_ms: Milliseconds = 0.0
    jitter_ms: Milliseconds = 0.0
    loss: Annotated[Share, Meta(description="share of packets of 20 ms that are heard as silence, each way")] = 0.0
    stall_ms: Annotated[Milliseconds, Meta(description="how long nothing comes from the server, now and then")] = 0.0
    stall_every_s: Seconds = 5.0
    echo: Echo | None = None


class When(Struct, forbid_unknown_fields=True, frozen=True):
    """The state of the card in which a step begins. All that is given must hold."""

    agent_audible_s: Annotated[Range | None, Meta(description="the agent has been audible for so long")] = None
    agent_silent_s: Annotated[Range | None, Meta(description="the agent has been silent for so long")] = None
    agent_left_s: Annotated[
        Seconds | None, Meta(description="so much of a response that is wholly sent is left to play")
    ] = None
    after_s: Annotated[Seconds | None, Meta(description="so long after the end of the step before")] = None
    agent: Literal["audible", "silent", "calling_tool"] | None = None
    within_s: Annotated[Seconds, Meta(description="if it takes longer, there was nothing to interrupt")] = 30.0


class ScenarioStep(Struct, forbid_unknown_fields=True, frozen=True):
    """Something the person does: words, a sound, or keys."""

    means: Meaning = "turn"
    say: Annotated[
        str | list[str | Seconds] | None,
        Meta(description='words, or words and pauses in seconds: ["I would like", 0.9, "two tickets."]'),
    ] = None
    any_of: Annotated[list[str], Meta(description="one of these words in each repeat", min_length=1)] | None = None
    sound: Annotated[str | None, Meta(description="a sound of the corpus, as mhm, cough, knock, typing, dtmf:12")] = (
        None
    )
    when: When | None = None
    name: str = ""
    voice: str = ""  # another voice than the person's
    level_db: Decibels | None = None  # another loudness than the person's
    answered: Annotated[bool, Meta(description="whether an answer must come; for turn and stop")] = True
    recalls: Annotated[bool, Meta(description="the answer must name the last number that was heard")] = False


class ScenarioTool(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool the agent may call."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
    description: str
    result: str = "{}"
    takes_s: Seconds = 2.0


Gates = dict[str, float | dict[str, float]]
"""`yield_ms.p95 = 500` in TOML: the metric's name, the statistic's name, and the most that is allowed."""


class Scenario(Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    name: Annotated[str, Meta(min_length=1, max_length=80)]
    step: Annotated[list[ScenarioStep], Meta(min_length=1, max_length=200)]
    description: str = ""
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 5
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 1
    client: Annotated[Literal["obedient", "naive"], Meta(description="naive: a loudspeaker that never flushes")] = (
        "obedient"
    )
    instructions: Annotated[str, Meta(description="for servers that take instructions from the client")] = ""
    greets: Annotated[bool, Meta(description="the agent speaks first; the first step may wait for that")] = False
    answer_s: Annotated[Seconds, Meta(description="an answer that takes longer counts as none")] = 10.0
    user: User = User()
    line: LineConditions = LineConditions()
    tool: list[ScenarioTool] = []
    gates: Gates = {}


def read_scenario(text: str, *, name: str) -> Scenario:
    """Return the scenario of a file; raise LabError with one line that names the place."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{name}: not TOML: {error}") from None
    try:
        scenario = checked(Scenario, found)
    except WrongShape as error:
        raise LabError(f"{name}: {error}") from None
    for number, step in enumerate(scenario.step, 1):
        if sum(part is not None for part in (step.say, step.any_of, step.sound)) != 1:
            raise LabError(f"{name}: step {number} needs one of say, any_of and sound")
        when = step.when or When()
        for first, last in filter(None, (when.agent_audible_s, when.agent_silent_s)):
            if first > last:
                raise LabError(f"{name}: step {number} has a range whose end is before its beginning")
    return scenario


def schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario, for editors."""
    return msgspec.json.schema(Scenario)
