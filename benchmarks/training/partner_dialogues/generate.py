"""Write plain_tools.jsonl and counts.jsonl: dialogues about tools without arguments, timers and dice, and long counts.

    python benchmarks/training/partner_dialogues/generate.py

The phrasings are in plain_tools.toml. The same texts give the same files. Dialogues with a turn that is close to one of
a benchmark are not written; partner_tune.py has the rule.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))

from partner_tune import Dialogue, benchmark_turns, is_close  # noqa: E402

from voxlane.engine.text.normalise.numbers import cardinal  # noqa: E402

Turns = list[list[Any]]
NO_PARAMETERS = (
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {}, "required": []},
    {"type": "object", "properties": {}, "additionalProperties": False},
)
CLOCKS = frozenset({"get_time", "current_time", "clock"})
DICE = frozenset({"roll_dice", "throw_dice"})
TIMERS = frozenset({"set_timer", "start_timer"})
ALIKE = (CLOCKS, DICE, TIMERS, frozenset({"pause_music", "mute"}), frozenset({"check_mail", "unread_messages"}))
"""Tools of one group are not offered together: either would be right."""

PAGE = ("get_time", "set_timer", "roll_dice")
PAGE_SHARE = 0.4
"""How often the tools beside a clock, a timer or dice are those of the demo page."""

# fmt: off
VALUES = {
    "side": ["heads", "tails"],
    "card": ["queen of hearts", "ten of spades", "ace of clubs", "seven of diamonds", "king of spades"],
    "color": ["red", "blue", "green", "yellow", "silver", "orange"],
    "percent": ["12", "23", "38", "45", "57", "64", "71", "86", "95"],
    "degrees": ["4", "9", "13", "17", "19", "21", "22", "26"],
    "n": ["2", "3", "4", "5", "6", "7", "8", "9"],
    "minutes": ["2", "4", "6", "9", "11", "14", "18", "25"],
    "steps": ["812", "2,340", "4,075", "6,930", "9,114", "12,600"],
    "pulse": ["58", "63", "71", "77", "84", "102"],
    "errand": ["call the plumber", "buy stamps", "take out the bins", "water the ferns", "renew the passport"],
    "errand2": ["pick up the dry cleaning", "pay the rent", "ring Aunt Olga", "return the drill"],
    "song": ["Blue Harbor", "Seven Rivers", "Long Way Down", "Paper Boats", "Under the Lindens"],
    "person": ["Nora", "Felix", "Amira", "Jonas", "Pilar"],
    "person2": ["Viktor", "Sana", "Louis", "Hedda"],
    "weekday": ["Monday", "Wednesday", "Friday", "Sunday"],
    "headline": ["The old bridge opens again", "A storm is on its way", "The museum has a new wing"],
    "headline2": ["the city buys forty electric buses", "a whale was seen in the bay", "the harvest was good"],
    "event": ["a call with the bank", "the dentist", "lunch with Tamara", "choir practice"],
    "town": ["Trieste", "Uppsala", "Leiden", "Graz", "Galway", "Porto"],
    "sky": ["cloudy", "sunny", "rainy", "foggy", "windy"],
    "station": ["Radio Nova", "Classic Wave", "City Sound", "Jazz Harbor"],
    "food": ["bread", "milk", "rice", "onions"],
    "food2": ["apples", "butter", "tea", "pepper"],
    "thing": ["an umbrella", "the charger", "a warm sweater"],
    "animal": ["penguin", "parrot", "snail", "camel"],
    "saying": ["Small steps also reach the summit.", "A calm sea never made a sailor.", "Who asks finds the way."],
    "joke": ["Why did the scarecrow win a prize? It was outstanding in its field.",
             "What do you call a sleeping bull? A bulldozer."],
}
# fmt: on


class Writer:
    """Draws dialogues from the phrasings."""

    def __init__(self, phrasings: dict[str, Any], others: Sequence[Turns]) -> None:
        self._chance = random.Random(11)
        self._tools = {tool["name"]: tool for tool in phrasings["tool"]}
        self._chats: list[list[str]] = phrasings["chat"]["turns"]
        self._missing: list[list[str]] = phrasings["missing"]["turns"]
        self._rolls: dict[str, list[str]] = phrasings["roll"]
        self._timers: dict[str, list[Any]] = phrasings["timer"]
        self._others = others
        self._day = date(2026, 3, 5)  # of the dialogue that is being made

    # ---- tools

    def declare(self, name: str) -> dict[str, Any]:
        """Return a tool as a dialogue has it."""
        if name in DICE:
            return self._dice_tool(name)
        if name in TIMERS:
            return self._timer_tool(name)
        tool = self._tools[name]
        given = tool.get("parameters")
        parameters = json.loads(given) if given else self._chance.choice(NO_PARAMETERS)
        return {"name": name, "description": self._chance.choice(tool["descriptions"]), "parameters": parameters}

    def _dice_tool(self, name: str) -> dict[str, Any]:
        dice = {
            "type": "integer",
            "description": self._chance.choice(["how many dice; 1 if not said", "how many, else 1"]),
        }
        sides = {"type": "integer", "description": self._chance.choice(["sides of each; 6 if not said", "else 6"])}
        parameters = {"type": "object", "properties": {"dice": dice, "sides": sides}}
        return {"name": name, "description": self._chance.choice(self._rolls["descriptions"]), "parameters": parameters}

    def _timer_tool(self, name: str) -> dict[str, Any]:
        waiting = ["how long to wait; a minute has 60", "seconds until it rings", "duration in seconds"]
        seconds = {"type": "number", "description": self._chance.choice(waiting)}
        parameters = {"type": "object", "properties": {"seconds": seconds}, "required": ["seconds"]}
        return {
            "name": name,
            "description": self._chance.choice(self._timers["descriptions"]),
            "parameters": parameters,
        }

    def offer(self, *names: str) -> list[dict[str, Any]]:
        """Return these tools among others, in random order."""
        offered = set(names)
        if offered & {*PAGE} and self._chance.random() < PAGE_SHARE:
            offered |= {one for one in PAGE if not any(_alike(one, name) for name in names)}
        else:
            every = [*self._tools, *DICE, *TIMERS]
            every.sort()
            for _ in range(self._chance.choice([0, 1, 1, 2, 3])):
                more = self._chance.choice(every)
                if not any(_alike(more, name) for name in offered):
                    offered.add(more)
        order = sorted(offered)
        return [self.declare(name) for name in self._chance.sample(order, len(order))]

    # ---- turns that call

    def use(self, name: str, ask: str = "") -> Turns:
        """Return turns in which a tool is called and its result told; with `ask` the person says exactly that."""
        if name in DICE:
            return self._roll(name)
        if name in TIMERS:
            return self._set_timer(name)
        tool = self._tools[name]
        cases = [tool, *tool.get("also", [])]
        case = next(one for one in cases if ask in one["asks"]) if ask else self._chance.choice(cases)
        output, reply = self._chance.choice(case["told"])
        said = ask or self._chance.choice(case["asks"])
        values = self._draw()
        said, output, reply, arguments = (
            _filled(text, values) for text in (said, output, reply, case.get("arguments", "{}"))
        )
        return _called(said, name, json.loads(arguments), output, reply)

    def _draw(self) -> dict[str, str]:
        """Return a value for every @word."""
        chance = self._chance
        hour, minute = chance.randrange(24), chance.randrange(60)
        values = {name: chance.choice(every) for name, every in VALUES.items()}
        values["time"] = f"{hour:02}:{minute:02}"
        values["time12"] = f"{(hour - 1) % 12 + 1}:{minute:02} {'AM' if hour < 12 else 'PM'}"
        values["date"] = _date(self._day)
        return values

    def _roll(self, name: str) -> Turns:
        chance = self._chance
        dice, sides = chance.choice([1, 1, 1, 2, 2, 3, 4, 5, 6]), chance.choice([6, 6, 6, 6, 4, 8, 10, 12, 20, 100])
        said = self._asked_to_roll(dice, sides)
        arguments = ({"dice": dice} if dice > 1 else {}) | ({"sides": sides} if sides != 6 else {})
        rolled = [chance.randint(1, sides) for _ in range(dice)]
        output = {"rolled": rolled, "sum": sum(rolled)}
        shown = str(rolled[0]) if dice == 1 else f"{', '.join(map(str, rolled[:-1]))} and {rolled[-1]}"
        total = f", {sum(rolled)} in total" if dice > 1 else ""
        reply = f"{chance.choice(['You rolled', 'You got', 'It shows' if dice == 1 else 'They show'])} {shown}{total}."
        return _called(said, name, arguments, json.dumps(output, separators=(",", ":")), reply)

    def _asked_to_roll(self, dice: int, sides: int) -> str:
        kind = ("one" if dice == 1 else "several") + ("" if sides == 6 else "_of_sides")
        many, of = _number(self._chance, dice), _number(self._chance, sides)
        return self._chance.choice(self._rolls[kind]).format(many=many, of=of, sides=sides)

    def _set_timer(self, name: str) -> Turns:
        chance = self._chance
        seconds, lasting = self._duration()
        said, spoken = chance.choice(self._timers["asks"]).format(d=lasting), _lasting(seconds)
        output = chance.choice([f'{{"set":true,"rings_in":"{spoken}"}}', "ok", '{"set":true}'])
        reply = chance.choice(self._timers["replies"]).format(d=spoken)
        return _called(said[0].upper() + said[1:], name, {"seconds": seconds}, output, reply)

    def _duration(self) -> tuple[int, str]:
        """Return a number of seconds and how a person says it."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.15:
            seconds, lasting = chance.choice(self._timers["durations"])
            return seconds, lasting
        if kind < 0.4:
            seconds = chance.choice([5, 10, 12, 15, 20, 25, 30, 35, 40, 45, 50, 55, 75, 90, 100])
            return seconds, f"{_number(chance, seconds)} seconds"
        if kind < 0.88:
            minutes = chance.choice([*range(2, 21), 22, 24, 25, 28, 30, 35, 40, 45, 50, 55, 60, 90])
            return 60 * minutes, f"{_number(chance, minutes)} minutes"
        hours = chance.choice([2, 3, 4, 5, 6, 8, 10, 12])
        return 3600 * hours, f"{_number(chance, hours)} hours"

    # ---- dialogues

    def dialogues(self) -> Iterator[Dialogue]:
        """Yield all dialogues with tools; those that tell the date say which day it is."""
        for dialogue in self._undated():
            dated = _date(self._day) in json.dumps(dialogue)
            yield ({"date": self._day.isoformat()} if dated else {}) | dialogue
            self._day = date(2025, 1, 1) + timedelta(days=self._chance.randrange(1400))

    def _undated(self) -> Iterator[Dialogue]:
        for name, tool in self._tools.items():
            for ask in (ask for case in [tool, *tool.get("also", [])] for ask in case["asks"]):
                yield self._dialogue([name], self.use(name, ask))
        for name, count in (("roll_dice", 70), ("throw_dice", 15), ("set_timer", 90), ("start_timer", 15)):
            for _ in range(count):
                yield self._dialogue([name], self.use(name))
        for said, reply in self._chats:
            yield {"tools": self.offer(self._any()), "turns": [["user", said], ["assistant", reply]]}
        for turns in self._chance.sample(list(self._others), 60):
            yield {"tools": self.offer(self._any()), "turns": turns}
        for said, reply, helpful in self._missing:
            offered = [one for one in self.offer("volume_up") if one["name"] not in helpful.split()]
            yield {"tools": offered, "turns": [["user", said], ["assistant", reply]]}
        for _ in range(30):
            yield self._both()

    def _any(self) -> str:
        return self._chance.choice([*PAGE, *PAGE, "flip_coin", "battery_level", "next_song", "list_reminders"])

    def _dialogue(self, names: list[str], turns: Turns) -> Dialogue:
        """Return a dialogue that sometimes goes on: with thanks, with a chat or with another tool."""
        chance, more = self._chance, []
        kind = chance.random()
        if kind < 0.12:
            thanks = ["Thanks.", "Great, thank you.", "Okay, thanks.", "perfect"]
            more = [
                ["user", chance.choice(thanks)],
                ["assistant", chance.choice(["You're welcome.", "Any time.", "Sure."])],
            ]
        elif kind < 0.22:
            said, reply = chance.choice(self._chats)
            more = [["user", said], ["assistant", reply]]
        elif kind < 0.36:
            other = chance.choice([one for one in (*PAGE, "flip_coin", "next_song") if not _alike(one, names[0])])
            names, more = [*names, other], self.use(other)
        elif kind < 0.44:
            said, reply = chance.choice(self._chats)
            turns = [["user", said], ["assistant", reply], *turns]
        return {"tools": self.offer(*names), "turns": [*turns, *more]}

    def _both(self) -> Dialogue:
        """Return a dialogue in which one turn needs two tools, called together."""
        first, second = self._chance.sample([*PAGE, "flip_coin", "battery_level", "room_temperature"], 2)
        one, other = self.use(first), self.use(second)
        said = f"{one[0][1].rstrip('.?!')}, and {other[0][1][0].lower()}{other[0][1][1:]}"
        turns = [
            ["user", said],
            ["call", [*one[1][1], *other[1][1]]],
            ["result", [*one[2][1], *other[2][1]]],
            ["assistant", f"{one[3][1]} {other[3][1]}"],
        ]
        return {"tools": self.offer(first, second), "turns": turns}


def counts(phrasings: dict[str, list[str]]) -> Iterator[Dialogue]:
    """Yield dialogues in which the person wants a whole count, and gets it."""
    chance = random.Random(12)

    def asked(kind: str, number: int, **more: object) -> str:
        return chance.choice(phrasings[kind]).format(n=_number(chance, number), **more)

    for last in (10, 12, 14, 15, 16, 18, 20, 20, 24, 25, 28, 30, 30):
        yield _said(asked("up", last), _listed(range(1, last + 1)))
    for first in (10, 12, 15, 20, 20, 25):
        yield _said(asked("down", first), _listed(range(first, -1, -1)))
    for step, last in ((2, 20), (2, 30), (3, 30), (4, 40), (5, 50), (5, 60), (10, 100), (7, 70), (6, 60), (9, 90)):
        yield _said(asked("steps", step, last=last), _listed(range(step, last + 1, step)))
    for factor in range(2, 12):
        rows = [f"{_spelt(n)} times {_spelt(factor)} is {n * factor}." for n in range(1, 11)]
        yield _said(asked("tables", factor), " ".join(row[0].upper() + row[1:] for row in rows))


# ---- texts


def _said(said: str, reply: str) -> Dialogue:
    return {"turns": [["user", said], ["assistant", reply]]}


def _listed(numbers: Sequence[int]) -> str:
    text = ", ".join(_spelt(number) for number in numbers)
    return f"{text[0].upper()}{text[1:]}."


def _spelt(number: int) -> str:
    return " ".join(cardinal(number))


def _number(chance: random.Random, number: int) -> str:
    """Return a number in words or in figures."""
    return _spelt(number) if chance.random() < 0.7 else str(number)


def _lasting(seconds: int) -> str:
    """Return a duration as the page's tool says it."""
    counted = ((seconds // 3600, "hour"), (seconds // 60 % 60, "minute"), (seconds % 60, "second"))
    return " and ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counted if count)


def _date(day: date) -> str:
    return f"{day:%A}, {day.day} {day:%B %Y}"


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@(\w+)", lambda found: values[found[1]], text)


def _called(said: str, name: str, arguments: dict[str, Any], output: str, reply: str) -> Turns:
    call = {"name": name, "arguments": arguments}
    return [["user", said], ["call", [call]], ["result", [output]], ["assistant", reply]]


def _alike(one: str, other: str) -> bool:
    return one == other or any(one in group and other in group for group in ALIKE)


def other_chats() -> list[Turns]:
    """Return short dialogues of other files, for turns that need no tool."""
    lines = [
        line for name in ("facts", "manners") for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    found = [json.loads(line)["turns"] for line in lines]
    about_tools = re.compile(
        r"\b(clock|time|play|music|remind|alarm|weather|news|dice|call|message|battery)\b", re.IGNORECASE
    )
    return [turns for turns in found if len(turns) == 2 and not about_tools.search(json.dumps(turns))]


def write(name: str, dialogues: Iterator[Dialogue]) -> None:
    """Write the dialogues that are not close to a benchmark's turns, each once."""
    turns = benchmark_turns()
    lines = [json.dumps(one, ensure_ascii=False) for one in dialogues if not is_close(one, turns)]
    kept = list(dict.fromkeys(lines))
    (FOLDER / name).write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    print(f"{name}: {len(kept)} dialogues")


def main() -> None:
    """Write both files."""
    phrasings = tomllib.loads((FOLDER / "plain_tools.toml").read_text("utf-8"))
    write("plain_tools.jsonl", Writer(phrasings, other_chats()).dialogues())
    write("counts.jsonl", counts(phrasings["count"]))


if __name__ == "__main__":
    main()
