"""partner.py: rules tell right from wrong, every exchange can be passed and failed, notes and tables are right."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from house import start
from hypothesis import given, settings

from voxlane.engine.text.normalise.numbers import cardinal
from voxlane.server.client import Event

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import partner
from support.partner import talk
from support.partner.exchanges import Exchange, load, load_file
from support.partner.rules import (
    Called,
    Reply,
    RuleError,
    Rules,
    count_sentences,
    count_words,
    declines,
    normalise,
    read_rules,
)

CATALOGUE = load_file()
TIMER = {"name": "set_timer", "arguments": {"minutes": "^10$"}}
FRUITS = {"of": ["pineapples?", "apples?", "pears?", "plums?"], "count": 2}


# ---- text


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Ninety-six!", "96"),
        ("It's 96.0, isn’t it?", "it s 96 is not it"),
        ("One, two, three, four and five.", "1 2 3 4 and 5"),
        ("one hundred and five", "105"),
        ("two thousand and twenty-five", "2025"),
        ("three point one four", "3.14"),
        ("1,250 people, 2.5 million", "1250 people 2500000"),
        ("nineteen eighty-four", "19 84"),
        ("I can't; CO₂ is 50% café", "i can not co 2 is 50 percent cafe"),
        ("T-R-A-I-N", "t r a i n"),
        ("", ""),
    ],
)
def test_texts_are_compared_without_their_spelling(text: str, normal: str) -> None:
    assert normalise(text) == normal


@settings(max_examples=examples(100))
@given(st.integers(0, 999_999))
def test_a_number_in_words_is_the_number(value: int) -> None:
    assert normalise(" ".join(cardinal(value))) == str(value) == normalise(f"{value:,}.")


@settings(max_examples=examples(100))
@given(st.text())
def test_any_text_can_be_looked_at(text: str) -> None:
    assert re.fullmatch(r"[^\W_.]*([ .][^\W_]+)*", normalise(text))
    assert count_words(text) >= count_sentences(text) >= 0
    assert isinstance(declines(text), bool)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [("Rain is water.", 1), ("Dr. Smith is 1.8 m tall, e.g. here. Yes!", 2), ("One\ntwo", 2), ("…", 0), ("Who? Me", 2)],
)
def test_sentences_are_counted(text: str, sentences: int) -> None:
    assert count_sentences(text) == sentences


# ---- one rule after the other


@pytest.mark.parametrize(
    ("rules", "right", "wrong"),
    [
        (Rules(any_of=(r"\bparis\b", "lutetia")), "It is PARIS.", "It is Comparison."),
        (Rules(all_of=("captain", r"\b4\b")), "Four, captain.", "Four."),
        (Rules(none_of=("^my name",)), "Your name is Peter.", "My name is Peter."),
        (Rules(number=96), "That is ninety-six.", "That is 96.5."),
        (Rules(number=13.5), "13.50 euros", "13 euros, 50"),
        (Rules(min_words=3), "It is so.", "So so."),
        (Rules(max_words=3), "It is so.", "It is not so."),
        (Rules(sentences=1), "It rains, at 3.5 mm.", "It rains. A lot."),
        (Rules(shorter=True), "Very dense things.", "They are very dense things."),
        (Rules(plain=True), "Mix 1 egg and flour, then bake it.", "**Mix** an egg."),
        (Rules(plain=True), "Use the sort method of the list.", "Use `sort()`."),
        (Rules(plain=True), "The timer is set.", '{"name": "set_timer", "arguments": {"minutes": 10}}'),
        (Rules(plain=True), "Take 2. Then rest.", "1. Take two 2. Rest"),
        (Rules(plain=True), "First a towel - then sun milk.", "Take:\n- a towel\n- sun milk"),
        (Rules(plain=True), "It is 3 < 4 and 5 > 4.", "<tool_response>18</tool_response>"),
        (Rules(declines=True), "I'm sorry, I don't know that.", "You had eggs."),
        (Rules(declines=True), "There are no Tuesdays in a bottle of milk.", "It contains 28 Tuesdays."),
        (Rules(declines=True), "You haven't told me that yet.", "You told me: a pen."),
        (Rules(declines=True), "Which one do you mean?", "It is blue. Would that be all?"),
        (Rules(distinct=FRUITS), "A pear, a pineapple, and more pears.", "Apples, pears and plums."),
        (Rules(), "Something.", "…"),
    ],
)
def test_each_rule_tells_right_from_wrong(rules: Rules, right: str, wrong: str) -> None:
    before = "They are rather dense things."
    assert rules.broken_by(Reply(right), before) == []
    assert len(rules.broken_by(Reply(wrong), before)) == 1


@pytest.mark.parametrize(
    ("rules", "right", "wrong"),
    [
        (Rules(call=TIMER), [("set_timer", '{"minutes": 10}')], []),
        (Rules(call=TIMER), [("set_timer", '{"minutes": "ten", "name": "tea"}')], [("set_timer", '{"minutes": 100}')]),
        (Rules(call=TIMER), [("set_timer", '{"minutes": 10}')] * 2, [("set_timer", "[10]")]),
        (Rules(call=TIMER), [("set_timer", '{"minutes": 10.0}')], [("set_timer", "{")]),
        (
            Rules(call=TIMER),
            [("set_timer", '{"minutes": 10}')],
            [("set_timer", '{"minutes": 10}'), ("set_light", "{}")],
        ),
        (Rules(no_call=True), [], [("set_light", "{}")]),
    ],
)
def test_calls_are_judged(rules: Rules, right: list[tuple[str, str]], wrong: list[tuple[str, str]]) -> None:
    def reply(calls: list[tuple[str, str]]) -> Reply:
        return Reply("Fine.", tuple(Called(*call) for call in calls))

    assert rules.broken_by(reply(right)) == []
    assert len(rules.broken_by(reply(wrong))) == 1


def test_who_only_calls_need_not_speak() -> None:
    assert Rules(call=TIMER).broken_by(Reply("", (Called("set_timer", '{"minutes": 10}'),))) == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"any": ["x"]}, "here: any is no rule; there are all_of, any_of,"),
        ({"any_of": ["("]}, "here: the pattern '(' cannot be read"),
        ({"call": {"name": "x", "arguments": {"y": 3}}}, "here: the pattern 3 cannot be read"),
    ],
)
def test_a_wrong_rule_is_named(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RuleError, match=f"^{re.escape(told)}"):
        read_rules(values, "here")


# ---- the exchanges


RIGHT = {
    "facts": [
        "The capital of France is Paris.",
        "A leap year has three hundred and sixty-six days.",
        "William Shakespeare.",
        "That is Jupiter.",
        "At 100 °C.",
        "The Atlantic Ocean.",
        "Leonardo da Vinci painted it.",
        "Eight.",
        "It ended in 1945.",
        "They speak Portuguese.",
        "Mount Everest.",
        "They take in CO2.",
        "Neil Armstrong, in 1969.",
        "The yen.",
        "In Africa.",
        "It has six sides.",
        "The heart does.",
        "You say “gracias”.",
        "Spring.",
        "A joey.",
        "Antonio Vivaldi.",
        "Four.",
    ],
    "arithmetic": [
        "Twelve times eight is ninety-six.",
        "22.",
        "That's sixty-three.",
        "Forty-five.",
        "You pay $12.00.",
        "180 seconds.",
        "It's 30.",
        "Thirteen euros.",
        "Two dozen are 24.",
        "At seven o'clock.",
        "Twelve.",
        "Tom is twenty-one.",
    ],
    "memory1": [
        "Your name is Peter.",
        "You live in Hamburg.",
        "To peanuts.",
        "Your dog's name is Bruno.",
        "You were born in nineteen eighty-four.",
        "It's green.",
        "On the third floor.",
        "With your sister Clara.",
        "Forty-seven.",
        "You have two sons.",
        "You're a nurse.",
        "It is on Thursday now.",
    ],
    "memory5": [
        "Your name is Maria.",
        "He is called Thomas.",
        "You told me that you are a vegetarian.",
        "To Iceland, on Friday.",
        "From platform 9.",
        "Under the flowerpot.",
        "Emma.",
        "On Wednesday.",
    ],
    "instructions": [
        "It rains because water in the clouds gets too heavy to stay up.",
        "Rome.",
        "Yes!",
        "No.",
        "1, 2, 3, 4, 5.",
        "Five, four, three, two, one!",
        "T, R, A, I, N.",
        "Apple, banana and strawberry.",
        "Bonjour!",
        "A place whose gravity lets nothing out.",
        "The early bird catches the worm.",
        "Two plus two is four, captain.",
        "Dogs are loyal.",
        "White.",
    ],
    "manners": [
        "Mix flour, milk and eggs, and fry thin layers of the batter in a pan.",
        "Put screens away an hour before bed and keep your room cool.",
        "Learn about the company, and practise a few answers aloud.",
        "Swimwear, a towel and sun cream.",
        "Call the list's sort method, or the function sorted if you want a new list.",
        "Jack the car up, swap the wheel for the spare, and tighten the nuts.",
        "A dog if you like walks, a cat if you like calm.",
        "I'm a voice assistant and I help you with questions.",
    ],
    "nonsense": [
        "Numbers have no cousins, so it has no color.",
        "Sorry, what would you like me to put where?",
        "I don't know what you had for breakfast.",
        "I can't see your hand.",
        "None: days don't fit into bottles, so the question makes no sense.",
        "The United States never had a king.",
        "I didn't understand that, could you say it again?",
        "I don't know your mother's middle name.",
    ],
    "followups": [
        "She is British.",
        "They speak Arabic.",
        "He is a teacher.",
        "Fourteen.",
        "It lives in the oceans.",
        "In Edinburgh, in Scotland.",
        "About ten minutes.",
        "A hundred.",
    ],
    "tools": ["It's 18 degrees.", "Yes, take one.", "", "", "", "", "Oslo.", "You're welcome!"],
}
CALLS = [
    ("get_weather", '{"city": "Rome"}'),
    ("get_weather", '{"city": "Oslo, Norway"}'),
    ("set_timer", '{"minutes": 10}'),
    ("set_timer", '{"minutes": 8}'),
    ("set_light", '{"room": "the kitchen", "state": "off"}'),
    ("play_music", '{"artist": "The Beatles"}'),
]
WRONG = {
    "manners": "**Ingredients**\n1. A cup of flour\n2. A towel\n",
    "nonsense": "The answer is red.",
    "tools": "It is sunny in Rome.",
}
BEFORE = {
    "instructions 10": "A black hole is a place in space from which nothing can come out.",
    "instructions 14": "Madrid",
}


def replies(exchange: Exchange, text: str, *calls: tuple[str, str]) -> list[Reply]:
    before = Reply(BEFORE.get(exchange.name, ""))
    return [*[before] * (len(exchange.turns) - 1), Reply(text, tuple(Called(*call) for call in calls))]


def test_there_are_a_hundred_exchanges_of_nine_kinds() -> None:
    held = [exchange.category for exchange in CATALOGUE.exchanges]
    assert {name: held.count(name) for name in CATALOGUE.titles} == {name: len(texts) for name, texts in RIGHT.items()}
    assert len(held) == 100
    assert len({exchange.turns for exchange in CATALOGUE.exchanges}) == 100
    assert {len(exchange.turns) for exchange in CATALOGUE.exchanges if exchange.category == "memory5"} == {6}
    assert partner.SHORT.keys() == CATALOGUE.titles.keys()


def test_a_right_answer_passes_and_wrong_ones_fail() -> None:
    for exchange in CATALOGUE.exchanges:
        texts, place = RIGHT[exchange.category], int(exchange.name.split()[1]) - 1
        calls = CALLS[place : place + 1] if exchange.category == "tools" else []
        assert exchange.broken_by(replies(exchange, texts[place], *calls)) == [], exchange.name
        for wrong in ("", "na " * 200, WRONG.get(exchange.category, texts[(place + 1) % len(texts)])):
            assert exchange.broken_by(replies(exchange, wrong)) != [], (exchange.name, wrong)
        assert exchange.broken_by([]) == [f"turn {turn} has no reply" for turn in exchange.rules]


def test_an_earlier_reply_can_be_wrong() -> None:
    exchange = next(one for one in CATALOGUE.exchanges if one.name == "instructions 14")
    told = exchange.broken_by([Reply("Fine."), Reply("The capital is Madrid."), Reply("White.")])
    assert told == ["turn 2 has none of: ^madrid$"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[a]]\nturns = ["x"]\n[category.b]\ntitle = "b"', "a is no category; there are b"),
        ('[[a]]\n[category.a]\ntitle = "b"', "a 1: there are no turns"),
        ('[[a]]\nturns = ["x"]\nat.1.number = 3\n[category.a]\ntitle = "b"', "a 1: `at` is for turns before the last"),
        ('[[a]]\nturns = ["x"]\ntools = ["y"]\n[category.a]\ntitle = "b"', "a 1: there is no tool y"),
    ],
)
def test_a_wrong_exchange_is_named(text: str, told: str) -> None:
    with pytest.raises(RuleError, match=f"^{re.escape(told)}$"):
        load(text)


# ---- what is taken down of a turn


def event(name: str, **values: Any) -> Event:
    return Event(name, 1, values)


def test_a_turn_that_a_pause_cut_in_two_counts_as_one() -> None:
    notes = talk.TurnNotes()
    assert not notes.over
    for at, told in enumerate(
        [
            event("speech_started", turn=1, at_s=0.0),
            event("user_turn", turn=1, text="I have twenty euros."),
            event("reply", epoch=1, turn=1),
            event("reply_text", epoch=1, text="Good."),
            event("speech_started", turn=2, at_s=0.0),
            event("turn_done", turn=1, how="interrupted"),
            event("user_turn", turn=2, text="How much is left?"),
            event("reply", epoch=2, turn=2),
            event("reply_text", epoch=2, text=" Thir"),
            event("reply_text", epoch=2, text="teen."),
            event("audio", epoch=2, offset=0, data=b"", words=[]),
        ]
    ):
        notes.take(float(at), told)
        assert not notes.over
    notes.take(20.0, event("turn_done", turn=2, how="done"))
    assert notes.over
    found = notes.answered("I have twenty euros. How much is left?", 4.0, spoken=True)
    assert found == talk.Answered(
        "I have twenty euros. How much is left?", "I have twenty euros. How much is left?", Reply("Thirteen."), 6.0
    )
    assert notes.answered("", 4.0, spoken=False).first_s == 4.0


async def test_an_exchange_is_typed_in_one_conversation() -> None:
    exchange = Exchange("a 1", "a", ("hello there", "tell me the history"), {2: Rules()})
    async with start() as running:
        first, second = await talk.typed(running.url, exchange, seed=3)
    assert (first.said, first.heard, first.reply.text, first.fault) == ("hello there", "hello there", "hello there", "")
    assert first.first_s is not None
    assert ";user=hello there;assistant=hello there;" in second.reply.text


async def test_a_tool_that_is_called_answers() -> None:
    offered = CATALOGUE.exchanges[-1].tools
    exchange = Exchange("a 1", "a", ("call now",), {1: Rules()}, offered)
    async with start() as running:
        (only,) = await talk.typed(running.url, exchange, seed=3)
    assert [call.name for call in only.reply.calls[: len(offered)]] == [tool.name for tool in offered]


async def test_a_turn_that_fails_is_noted_and_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with start() as running:
        exchange = Exchange("a 1", "a", ("fail", "hello"), {2: Rules()})
        first, _ = await talk.typed(running.url, exchange, seed=3)
        assert first.fault.startswith("engine_failed")
        monkeypatch.setattr(talk, "TURN_S", 0.2)
        exchange = Exchange("a 1", "a", ("wait", "hello"), {2: Rules()})
        (only,) = await talk.typed(running.url, exchange, seed=3)
        assert only.fault == "no end within 0 s"


@pytest.mark.parametrize("events", [[event("user_turn", turn=4, text="What?"), event("turn_done", turn=4)], []])
async def test_speech_is_followed_until_it_is_answered_or_was_not_heard(
    monkeypatch: pytest.MonkeyPatch, events: list[Event]
) -> None:
    monkeypatch.setattr(talk, "UNHEARD_S", 0.0)
    somebody = SimpleNamespace(events=[(0.0, event("turn_done", turn=3))], stopped_s=0.0, speaking=True)

    async def news(known: int, most_s: float) -> None:
        assert known == len(somebody.events)
        somebody.speaking = known < len(events)
        somebody.events += [(1.0, told) for told in events[known - 1 : known]]

    somebody.news = news
    notes = talk.TurnNotes()
    await talk._follow(somebody, notes, 1, CATALOGUE.exchanges[0])  # type: ignore[arg-type]
    assert notes.over is bool(events)
    assert notes.turn == (4 if events else 0)


# ---- runs and tables


@pytest.mark.parametrize(
    ("said", "heard", "right"),
    [
        ("I was born in nineteen eighty-four.", "i was born in 1984", True),
        ("Under the flower pot.", "Under the flowerpot!", True),
        ("In which year?", "In which ear?", False),
    ],
)
def test_another_spelling_is_not_misheard(said: str, heard: str, right: bool) -> None:
    assert partner.turn_heard(talk.Answered(said, heard, Reply(""), None)) is right


def judged(number: int, text: str, *, heard: str = "") -> partner.Judged:
    exchange = CATALOGUE.exchanges[number]
    turns = [talk.Answered(said, heard or said, Reply(text), first_s=0.25) for said in exchange.turns]
    return partner.judge(exchange, 1, turns)


def test_the_bars_are_for_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = judged(0, "Paris."), judged(34, "Your name is Paul.", heard="My name is Paul.")
    assert (one.misheard, other.misheard) == (False, True)
    assert not judged(0, "Paris.", heard="What is the capital of Trance?").misheard
    runs = [partner.Run(name, "text", (one, other), 12.34) for name in (partner.BARRED, "another")]
    runs.append(partner.Run("another", "speech", (one, other), None))
    partner.report(runs, list(CATALOGUE.titles))
    told = capsys.readouterr().out
    rows = [re.split(r"\s{2,}", line.strip()) for line in told.splitlines()]
    assert [partner.BARRED, "text", "2", "50", "0", "100", "0"] in rows
    assert ["another", "text", "12.3", "250", "–", "4", "–"] in rows
    assert ["another", "speech", "–", "–", "250", "4", "1"] in rows
    assert [line.strip() for line in told.splitlines() if "bar:" in line] == [
        f"bar: {partner.BARRED}, text, all: 65 %: 50, missed",
        f"bar: {partner.BARRED}, text, memory: 85 %: 0, missed",
    ]
    partner.show(runs[2])
    assert "memory1 1 (misheard): has none of: \\bpeter\\b" in capsys.readouterr().out


def test_replies_are_kept_and_judged_again() -> None:
    called = talk.Answered("x", "x", Reply("Yes.", (Called("get_weather", '{"city": "Oslo"}'),)), None)
    kept = (judged(0, "Paris."), judged(0, "Rome."), partner.judge(CATALOGUE.exchanges[93], 2, [called]))
    runs = [partner.Run("model", "text", kept, 3.0)]
    text = partner.as_json(runs, list(CATALOGUE.titles))
    assert json.loads(text)["runs"][0]["percent"] == pytest.approx(200 / 3)
    assert partner.read_json(text, CATALOGUE.exchanges) == runs
    assert [len(run.judged) for run in partner.read_json(text, CATALOGUE.exchanges[:50])] == [2]


async def test_so_many_exchanges_are_held_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    running, most = 0, 0

    async def hold(exchange: Exchange, seed: int) -> list[talk.Answered]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return [talk.Answered(exchange.turns[0], "", Reply("Paris."), None)]

    progress = partner.Progress("model", 12)
    held = await partner.hold_all(CATALOGUE.exchanges[:4], [1, 2, 3], 3, hold, progress)
    assert [(one.exchange.name, one.seed) for one in held[3:6]] == [("facts 4", 1), ("facts 1", 2), ("facts 2", 2)]
    assert most == 3
    assert capsys.readouterr().err.splitlines()[-1] == "model: 12 of 12, 25 % right"


def test_a_third_has_every_category(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = partner.parse(CATALOGUE, ["--model", "x", "--through", "speech"])

    async def aloud(url: str, exchange: Exchange, seed: int, clip: Any) -> list[talk.Answered]:
        return []

    monkeypatch.setattr(partner, "spoken_aloud", aloud)
    run = partner.run_spoken("", "x", CATALOGUE.exchanges, asked)
    assert len(run.judged) == 34
    assert {one.exchange.category for one in run.judged} == CATALOGUE.titles.keys()
    assert run.first_ms() is None


def test_the_speed_is_read_from_the_metrics() -> None:
    page = "voxlane_output_token_seconds_count 4.0\nvoxlane_output_token_seconds_sum 0.5\nother_sum 3\n"
    assert partner.seconds_per_token(page) == (0.5, 4.0)


def test_models_are_those_of_the_catalog_that_are_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listing(name: str, task: str, parameters: int, path: Path | None) -> SimpleNamespace:
        return SimpleNamespace(model=SimpleNamespace(name=name, task=task, parameters=parameters), path=path)

    here = Path("here")
    listings = [listing("b", "chat", 2, here), listing("a", "chat", 1, here), listing("c", "chat", 3, None)]
    monkeypatch.setattr(partner.store, "list_models", lambda: [*listings, listing("d", "asr", 1, here)])
    assert partner.parse(CATALOGUE, []).model == ["a", "b"]
    monkeypatch.setattr(partner.store, "list_models", list)
    for arguments, told in ([], "no chat model is installed"), (["--model", "x", "--sample", "0"], "at least 1"):
        with pytest.raises(SystemExit):
            partner.parse(CATALOGUE, arguments)
        assert told in capsys.readouterr().err


def test_a_model_that_cannot_run_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    asked = partner.parse(CATALOGUE, ["--model", "./no-such-model.gguf"])
    assert partner.run_model("./no-such-model.gguf", CATALOGUE.exchanges, asked) == []
    told = capsys.readouterr().err
    assert told.startswith("no-such-model is left out: ")
    assert "no-such-model.gguf" in told.partition("left out")[2]


def test_somebody_may_listen_faster_than_voices_speak() -> None:
    from support.conversation import Person

    pulled: list[int] = []

    class Loudspeaker:
        rate = 24_000

        def pull(self, samples: int) -> bytes:
            pulled.append(samples)
            raise asyncio.CancelledError

    async def send_audio(data: bytes) -> None:
        assert len(data) == 640

    somebody = Person(SimpleNamespace(send_audio=send_audio), Loudspeaker())  # type: ignore[arg-type]
    somebody.speak(np.ones(400, np.int16))
    assert somebody.speaking
    somebody.listens_at = 4.0
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(somebody.live())
    assert pulled == [1920]
