"""Scenario files: what is read, and one clear line for each mistake."""

from __future__ import annotations

import pytest

from voxlane_lab.errors import LabError
from voxlane_lab.scenario import Echo, Noise, Scenario, When, read_scenario

STORY = """
name = "mhm, then stop"
description = "A person listens, and then does not."
repeat = 20
seed = 7
client = "naive"
[user]
voice = "kokoro:am_adam"
noise = { bed = "cafe", snr_db = 15 }
[line]
delay_ms = 40
jitter_ms = 15
loss = 0.02
echo = { level_db = -12, room = true }
[[step]]
say = "Tell me a long story."
[[step]]
when = { agent_audible_s = [1.0, 2.5] }
sound = "mhm"
means = "nothing"
[[step]]
when = { after_s = 2.0, agent = "audible" }
say = ["Stop, that is enough.", 0.6, "What is the capital of France?"]
means = "stop"
[[tool]]
name = "weather"
description = "Tell the weather."
[gates]
yield_ms.p95 = 500
stale_ms.max = 0
"""
SMALLEST = 'name = "smallest"\n[[step]]\nsay = "Hello."\n'


def read(text: str) -> Scenario:
    return read_scenario(text, name="file.toml")


def refusal(text: str) -> str:
    with pytest.raises(LabError) as caught:
        read(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_whole_file_is_read() -> None:
    scenario = read(STORY)
    assert (scenario.name, scenario.repeat, scenario.seed, scenario.client) == ("mhm, then stop", 20, 7, "naive")
    assert scenario.user.noise == Noise(bed="cafe", snr_db=15)
    assert (scenario.line.delay_ms, scenario.line.jitter_ms, scenario.line.loss) == (40, 15, 0.02)
    assert scenario.line.echo == Echo(level_db=-12, room=True)
    assert [step.means for step in scenario.step] == ["turn", "nothing", "stop"]
    assert scenario.step[1].when == When(agent_audible_s=(1.0, 2.5))
    assert scenario.step[2].say == ["Stop, that is enough.", 0.6, "What is the capital of France?"]
    assert scenario.tool[0].takes_s == 2.0
    assert scenario.gates == {"yield_ms": {"p95": 500}, "stale_ms": {"max": 0}}


def test_what_is_not_said_has_a_value() -> None:
    scenario = read(SMALLEST)
    assert (scenario.repeat, scenario.seed, scenario.client, scenario.answer_s) == (5, 1, "obedient", 10.0)
    assert (scenario.user.voice, scenario.user.level_db, scenario.user.noise) == ("any", -23.0, None)
    assert scenario.step[0].means == "turn"
    assert scenario.step[0].answered
    assert scenario.gates == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "file.toml: not TOML"),
        ("", "name"),
        ('name = "a"', "step"),
        ('name = "a"\nstep = []', "step"),
        (SMALLEST + "colour = 3", "colour"),
        (SMALLEST + "[user]\ncolour = 3", "colour"),
        (SMALLEST.replace('say = "Hello."', 'say = "Hello."\nwhen = { agent = "asleep" }'), "step[0].when.agent"),
        (SMALLEST.replace('"Hello."', '"Hello."\nmeans = "maybe"'), "nothing, stop, turn"),
        ("repeat = 0\n" + SMALLEST, "repeat must be a whole number from 1 to 1000"),
        ('client = "deaf"\n' + SMALLEST, "client"),
        (SMALLEST + "[line]\nloss = 2", "line.loss must be a number from 0 to 1"),
        (SMALLEST + "[line]\ndelay_ms = -1", "line.delay_ms"),
        (SMALLEST + '[gates]\nyield_ms.p95 = "low"', "gates"),
        ('name = "a"\n[[step]]\nmeans = "turn"', "step 1 needs one of say, any_of and sound"),
        (SMALLEST + 'sound = "mhm"', "step 1 needs one of say, any_of and sound"),
        (SMALLEST + "[[step]]\nany_of = []", "step[1].any_of"),
        (SMALLEST + "when = { agent_silent_s = [2.0, 1.0] }", "step 1 has a range whose end is before its beginning"),
        (SMALLEST + '[[tool]]\nname = "a b"\ndescription = ""', "tool[0].name"),
    ],
)
def test_a_mistake_is_named_in_one_line(text: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith("file.toml: ")
    assert words in message
