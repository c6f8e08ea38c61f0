"""A hundred spoken exchanges with every installed chat model: how many go well, and how fast.

    python benchmarks/partner.py                                  # typed, every installed chat model
    python benchmarks/partner.py --model smollm2-135m-instruct ./my-model.gguf --show
    python benchmarks/partner.py --through speech                 # every third exchange, spoken in real time
    python benchmarks/partner.py --only memory1 memory5 --seed 1 2 3
    python benchmarks/partner.py --page --seed 1 2 3              # the demo page's tools instead (partner_page.toml)
    python benchmarks/partner.py --phone                          # the telephone's tools instead (partner_phone.toml)

It measures the product: a real `voxlane serve`, the native WebSocket, the server's own instructions, sampling and
history. Only the seed is set, so that a run can be repeated. An exchange is one conversation of one to six turns. Rules
judge its last reply (in some, an earlier one too): patterns, a number, a length, no Markdown, the right call of a tool.
partner_exchanges.toml has all exchanges and their rules. It was written before any model had answered; since then only
wrong rules were corrected, which the top of that file lists.

Spoken exchanges are spoken by the server's voice, sent as a microphone sends them, and transcribed by the server. An
exchange that fails counts as failed even if the recogniser is to blame; those are also counted as misheard.

An exchange is worth one percent. Of a hundred, chance alone moves a score by four or five: compare models, not
decimals. Several seeds reduce the effect of sampling. Bars, for the default model alone: 65 % of all, 85 % of the two
kinds of memory together. Writes partner.json to the folder that $OUT names, if it is set.

With --page the tools are those of client_js/demo/tools.js (it needs Node), with --phone hang_up, transfer and
collect_digits of a telephone call. A further table then says how many turns that need a tool called it with the right
arguments, how many of those said something fitting, and how many others called none.

Time: on two cores 3 minutes for the 135M model, 10 for one of 0.5B, 25 for one of 1.5B; spoken, 8 minutes for a third
with the default model. With --page 14 minutes for one of 0.5B, with --phone 6, beside other work on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from support.command_line import command_line
from support.common import machine, table
from support.conversation import ServerEnded, server_process, spoken
from support.partner.exchanges import Catalogue, Exchange, OfferedTool, load, load_file
from support.partner.rules import Called, Reply, Rules, count_words, normalise
from support.partner.talk import Answered, spoken_aloud, typed

from voxlane.engine.weights import store
from voxlane.server.phone.call_tools import ENDING, CallTools

FOLDER = Path(__file__).parent
PAGE_FILE, PAGE_TOOLS = FOLDER / "partner_page.toml", FOLDER / "partner_page_tools.mjs"
PHONE_FILE = FOLDER / "partner_phone.toml"
PHONE_TOOLS = CallTools(hang_up=True, collect_digits=True, transfer={"sales": "tel:+1", "support": "tel:+2"})
PHONE_RESULTS = {"collect_digits": '{"digits": "4711"}'}
BARRED = "qwen2.5-coder-0.5b-instruct"
OVERALL_BAR, MEMORY_BAR = 65.0, 85.0
MEMORY = ("memory1", "memory5")
SHORT = {
    "facts": "facts",
    "arithmetic": "sums",
    "memory1": "mem 1",
    "memory5": "mem 5",
    "instructions": "instr.",
    "manners": "manners",
    "nonsense": "nonsense",
    "followups": "follow-up",
    "tools": "tools",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One exchange with the rules that its replies break."""

    exchange: Exchange
    seed: int
    turns: tuple[Answered, ...]
    broken: tuple[str, ...]  # empty: it went well

    @property
    def misheard(self) -> bool:
        """Whether it failed and a turn was misheard."""
        return bool(self.broken) and any(not turn_heard(turn) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Run:
    """All exchanges with one model, typed or spoken."""

    model: str
    through: str
    judged: tuple[Judged, ...]
    tokens_per_s: float | None  # None: spoken, or not one at a time

    def percent(self, categories: Iterable[str] = ()) -> float | None:
        """Return the percentage of exchanges of these categories, or of all, that went well; None if there are none."""
        wanted = set(categories)
        held = [one for one in self.judged if not wanted or one.exchange.category in wanted]
        return 100 * sum(not one.broken for one in held) / len(held) if held else None

    def first_ms(self) -> float | None:
        """Return the median time to the first word, or in a spoken run to the first sound."""
        times = [turn.first_s * 1e3 for one in self.judged for turn in one.turns if turn.first_s is not None]
        return statistics.median(times) if times else None

    def reply_words(self) -> float:
        """Return the median number of words in a reply."""
        return statistics.median(count_words(turn.reply.text) for one in self.judged for turn in one.turns)


def turn_heard(turn: Answered) -> bool:
    """Return whether the transcript is what was said; "nineteen fifty" may be written 1950."""
    said, heard = (normalise(text).replace(" ", "") for text in (turn.said, turn.heard))
    return said == heard


def judge(exchange: Exchange, seed: int, turns: Sequence[Answered]) -> Judged:
    """Judge an exchange by its rules."""
    faults = [turn.fault for turn in turns if turn.fault]
    return Judged(exchange, seed, tuple(turns), (*faults, *exchange.broken_by([turn.reply for turn in turns])))


# ---- the demo page's tools


def load_page() -> Catalogue:
    """Return the exchanges of --page, each with the page's tools and the results of the calls that it expects."""
    catalogue = load(PAGE_FILE.read_text(encoding="utf-8"))
    expected = [list(expected_calls(exchange)) for exchange in catalogue.exchanges]
    declared, outputs = page_tools([call for calls in expected for call in calls])
    given = iter(outputs)
    exchanges = []
    for exchange, calls in zip(catalogue.exchanges, expected, strict=True):
        results = {name: next(given) for name, _ in calls}
        offered = tuple(OfferedTool(**tool, result=results.get(tool["name"], "done")) for tool in declared)
        exchanges.append(replace(exchange, tools=offered))
    return Catalogue(catalogue.titles, tuple(exchanges))


def load_phone() -> Catalogue:
    """Return the exchanges of --phone, each with the telephone's tools."""
    catalogue = load(PHONE_FILE.read_text(encoding="utf-8"))
    offered = tuple(
        OfferedTool(tool.name, tool.description, tool.parameters, PHONE_RESULTS.get(tool.name, ENDING))
        for tool in PHONE_TOOLS.tools
    )
    return Catalogue(catalogue.titles, tuple(replace(exchange, tools=offered) for exchange in catalogue.exchanges))


def expected_calls(exchange: Exchange) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the calls that an exchange expects, one for each tool; an argument that may be missing is missing."""
    patterns = {rules.call["name"]: rules.call.get("arguments", {}) for rules in exchange.rules.values() if rules.call}
    for name, arguments in patterns.items():
        yield name, {key: int(found[1]) for key, value in arguments.items() if (found := re.match(r"\^(\d+)\$", value))}


def page_tools(calls: Sequence[tuple[str, Mapping[str, int]]]) -> tuple[list[dict[str, str]], list[str]]:
    """Return the page's tools as it declares them, and the page's outputs of calls."""
    # `make` installs Node beside Python where there is none.
    node = shutil.which("node", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if node is None:
        sys.exit("--page runs the tools of the demo page: it needs Node")
    found = subprocess.run([node, str(PAGE_TOOLS)], input=json.dumps(calls), capture_output=True, text=True, check=True)
    told = json.loads(found.stdout)
    return told["tools"], told["outputs"]


@dataclass(frozen=True, slots=True)
class ToolUses:
    """How many turns need a tool, how many of them called it rightly and told its result, and how many need none."""

    needed: int
    called: int  # of those needed
    told: int  # of those called
    unneeded: int
    left_alone: int  # of those unneeded

    def row(self) -> list[str]:
        """Return the cells of a table."""
        return [
            f"{self.called} of {self.needed}",
            f"{self.told} of {self.called}",
            f"{self.left_alone} of {self.unneeded}",
        ]


def tool_uses(judged: Iterable[Judged]) -> ToolUses:
    """Count the calls of all turns that have a rule about calls."""
    needed, called, told, unneeded, left_alone = 0, 0, 0, 0, 0
    for one in judged:
        for place, rules in one.exchange.rules.items():
            if not rules.call and not rules.no_call:
                continue
            reply = one.turns[place - 1].reply if place <= len(one.turns) else Reply("")
            right = not Rules(call=rules.call, no_call=rules.no_call).broken_by(replace(reply, text="x"))
            if rules.call:
                words = bool(reply.text.strip()) and not replace(rules, call={}).broken_by(reply)
                needed, called, told = needed + 1, called + right, told + (right and words)
            else:
                unneeded, left_alone = unneeded + 1, left_alone + right
    return ToolUses(needed, called, told, unneeded, left_alone)


def report_uses(runs: Sequence[Run]) -> None:
    """Print how each model used the tools."""
    header = ["model", "through", "called rightly", "with fitting words", "called none where none is needed"]
    table("turns and tools", header, [[run.model, run.through, *tool_uses(run.judged).row()] for run in runs])


# ---- holding exchanges


class Progress:
    """The progress of a run on stderr: one line that is overwritten on a terminal, else a line every ten exchanges."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._held, self._right = what, total, 0, 0

    def take(self, judged: Judged) -> None:
        """Count an exchange."""
        self._held += 1
        self._right += not judged.broken
        moves, last = sys.stderr.isatty(), self._held == self._total
        if moves or last or self._held % 10 == 0:
            line = f"{self._what}: {self._held} of {self._total}, {100 * self._right / self._held:.0f} % right"
            print(f"\r{line}" if moves else line, end="\n" if last or not moves else "", file=sys.stderr, flush=True)


async def hold_all(
    exchanges: Sequence[Exchange],
    seeds: Sequence[int],
    at_once: int,
    hold: Callable[[Exchange, int], Awaitable[list[Answered]]],
    progress: Progress,
) -> list[Judged]:
    """Hold every exchange with every seed, `at_once` at a time, and judge them."""
    turnstile = asyncio.Semaphore(at_once)

    async def one(exchange: Exchange, seed: int) -> Judged:
        async with turnstile:
            judged = judge(exchange, seed, await hold(exchange, seed))
        progress.take(judged)
        return judged

    return list(await asyncio.gather(*(one(exchange, seed) for seed in seeds for exchange in exchanges)))


def seconds_per_token(page: str) -> tuple[float, float]:
    """Return the sum and the count of the times between two tokens on a page of metrics."""
    found = dict(re.findall(r"^voxlane_output_token_seconds_(sum|count) (\S+)$", page, re.MULTILINE))
    return float(found["sum"]), float(found["count"])


def metrics(url: str) -> str:
    """Return a server's page of metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return str(answer.read(), "utf-8")


def run_typed(url: str, model: str, exchanges: Sequence[Exchange], asked: argparse.Namespace) -> Run:
    """Type all exchanges."""
    progress = Progress(f"{model}, typed", len(exchanges) * len(asked.seed))
    sum_before, count_before = seconds_per_token(metrics(url))
    held = asyncio.run(
        hold_all(exchanges, asked.seed, asked.at_once, lambda exchange, seed: typed(url, exchange, seed), progress)
    )
    sum_after, count_after = seconds_per_token(metrics(url))
    spent_s = sum_after - sum_before
    alone = asked.at_once == 1 and spent_s > 0
    return Run(model, "text", tuple(held), (count_after - count_before) / spent_s if alone else None)


def run_spoken(url: str, model: str, exchanges: Sequence[Exchange], asked: argparse.Namespace) -> Run:
    """Speak every third exchange, or all."""
    chosen = exchanges if asked.all else exchanges[:: max(1, round(len(exchanges) / asked.sample))]
    clip = cache(lambda text: spoken(url, text))
    progress = Progress(f"{model}, spoken", len(chosen) * len(asked.seed))
    held = asyncio.run(
        hold_all(chosen, asked.seed, 1, lambda exchange, seed: spoken_aloud(url, exchange, seed, clip), progress)
    )
    return Run(model, "speech", tuple(held), None)


def run_model(model: str, exchanges: Sequence[Exchange], asked: argparse.Namespace) -> list[Run]:
    """Start a server with one model and hold the exchanges with it."""
    name = Path(model).stem if os.sep in model else model
    ways = {"text": run_typed, "speech": run_spoken}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            with server_process("--model", model, "--adapter", asked.adapter, log=log) as (url, _):
                return [way(url, name, exchanges, asked) for key, way in ways.items() if asked.through in (key, "both")]
        except ServerEnded:
            log.seek(0)
            last = log.read().strip().rpartition("\n")[2]
            print(f"{name} is left out: {last or 'the server ended'}", file=sys.stderr)
            return []


# ---- telling


def cell(value: float | None, digits: int = 0) -> str:
    """Return a figure for a table."""
    return "–" if value is None else f"{value:.{digits}f}"


def report(runs: Sequence[Run], categories: Sequence[str], *, uses: bool = False) -> None:
    """Print how well and how fast the models answered, and if the bars are met, or with `uses` how tools were used."""
    shown = [name for name in categories if any(run.percent([name]) is not None for run in runs)]
    rows = [
        [run.model, run.through, str(len(run.judged)), cell(run.percent()), cell(run.percent(MEMORY))]
        + [cell(run.percent([name])) for name in shown]
        for run in runs
    ]
    header = ["model", "through", "held", "all", "memory", *(SHORT.get(name, name) for name in shown)]
    table(f"percent of exchanges that went well, {machine()}", header, rows)
    speed = []
    for run in runs:
        typed_alone = run.tokens_per_s is not None
        times = [
            cell(run.first_ms() if typed_alone else None),
            cell(run.first_ms() if run.through == "speech" else None),
        ]
        missed = str(sum(one.misheard for one in run.judged)) if run.through == "speech" else "–"
        speed.append([run.model, run.through, cell(run.tokens_per_s, 1), *times, cell(run.reply_words()), missed])
    columns = ["tokens/s", "first token, ms", "voice to voice, ms", "words a reply", "failed and misheard"]
    table("and how fast; medians", ["model", "through", *columns], speed)
    if uses:
        report_uses(runs)
        return
    for run in runs:
        if run.model == BARRED:
            tell_bars(run)


def tell_bars(run: Run) -> None:
    """Print whether the default model meets the bars."""
    for what, found, bar in (("all", run.percent(), OVERALL_BAR), ("memory", run.percent(MEMORY), MEMORY_BAR)):
        if found is not None:
            met = "met" if found >= bar else "missed"
            print(f"  bar: {run.model}, {run.through}, {what}: {bar:.0f} %: {found:.0f}, {met}")


def show(run: Run) -> None:
    """Print every failed exchange with its broken rules."""
    print(f"\n{run.model}, {run.through}: what went wrong")
    for one in run.judged:
        if not one.broken:
            continue
        print(f"\n  {one.exchange.name}{' (misheard)' if one.misheard else ''}: {'; '.join(one.broken)}")
        for turn in one.turns:
            other = "" if turn_heard(turn) else f"   [heard: {turn.heard}]"
            print(f"    > {turn.said}{other}")
            for call in turn.reply.calls:
                print(f"      call {call.name} {call.arguments}")
            print(f"      {turn.reply.text!r}")


def as_json(runs: Sequence[Run], categories: Sequence[str]) -> str:
    """Return all runs as JSON."""

    def told(run: Run) -> dict[str, object]:
        return {
            "model": run.model,
            "through": run.through,
            "percent": run.percent(),
            "memory_percent": run.percent(MEMORY),
            "percent_by_category": {name: run.percent([name]) for name in categories},
            "tokens_per_s": run.tokens_per_s,
            "first_ms": run.first_ms(),
            "reply_words": run.reply_words(),
            "exchanges": [
                {
                    "name": one.exchange.name,
                    "seed": one.seed,
                    "broken": one.broken,
                    "misheard": one.misheard,
                    "turns": [asdict(turn) for turn in one.turns],
                }
                for one in run.judged
            ],
        }

    return json.dumps({"machine": machine(), "runs": [told(run) for run in runs]}, indent=1, ensure_ascii=False)


def read_json(text: str, exchanges: Sequence[Exchange]) -> list[Run]:
    """Return the runs that as_json() wrote, judged by the present rules; leave out exchanges that are not asked for."""
    by_name = {one.name: one for one in exchanges}
    return [
        Run(
            told["model"],
            told["through"],
            tuple(
                judge(by_name[one["name"]], one["seed"], [_read_turn(turn) for turn in one["turns"]])
                for one in told["exchanges"]
                if one["name"] in by_name
            ),
            told["tokens_per_s"],
        )
        for told in json.loads(text)["runs"]
    ]


def _read_turn(values: dict[str, Any]) -> Answered:
    calls = tuple(Called(**call) for call in values["reply"]["calls"])
    return Answered(**{**values, "reply": Reply(values["reply"]["text"], calls)})


# ---- the command


def chat_models() -> list[str]:
    """Return the chat models of the catalog that are on this machine, small ones first."""
    here = [listing.model for listing in store.list_models() if listing.path and listing.model.task == "chat"]
    return [model.name for model in sorted(here, key=lambda model: model.parameters)]


def parse(catalogue: Catalogue, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = command_line(__doc__)
    kinds = "\n".join(f"  {name:14}{title}" for name, title in catalogue.titles.items())
    parser.epilog = f"categories:\n{kinds}"
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--page", action="store_true", help="hold the exchanges with the demo page's tools instead")
    other.add_argument("--phone", action="store_true", help="hold the exchanges with the telephone's tools instead")
    parser.add_argument("--model", nargs="+", help="names of the catalog, or paths (all installed chat models)")
    parser.add_argument(
        "--adapter", default="auto", help="as for `voxlane serve`; '' leaves the adapter out (%(default)s)"
    )
    parser.add_argument("--through", choices=("text", "speech", "both"), default="text", help="(%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="CATEGORY", choices=list(catalogue.titles), help="listed below")
    parser.add_argument("--seed", nargs="+", type=int, default=[1], help="hold every exchange once with each (1)")
    parser.add_argument("--sample", type=int, default=34, metavar="N", help="how many to speak (%(default)s), evenly")
    parser.add_argument("--all", action="store_true", help="speak all of them")
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N", help="typed exchanges at the same time: quicker, but no speeds"
    )
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="judge the replies in a partner.json again; start no server"
    )
    parser.add_argument("--show", action="store_true", help="print the replies that are wrong, and why")
    asked = parser.parse_args(arguments)
    if min(asked.sample, asked.at_once) < 1:
        parser.error("--sample and --at-once: at least 1")
    asked.model = asked.model or chat_models()
    if not asked.model and not asked.again:
        parser.error("no chat model is installed: run `voxlane models pull NAME`")
    return asked


def main() -> None:
    """Hold the exchanges and print the tables."""
    # Which exchanges are held decides which categories there are, and these are options.
    loaders = {"--page": load_page, "--phone": load_phone}
    catalogue = next((loaders[one] for one in sys.argv[1:] if one in loaders), load_file)()
    asked = parse(catalogue)
    exchanges = [one for one in catalogue.exchanges if not asked.only or one.category in asked.only]
    if asked.again:
        runs = read_json(asked.again.read_text(encoding="utf-8"), exchanges)
    else:
        runs = [run for model in asked.model for run in run_model(model, exchanges, asked)]
    if not runs:
        sys.exit("no model could be run")
    if asked.show:
        for run in runs:
            show(run)
    report(runs, list(catalogue.titles), uses=asked.page or asked.phone)
    if (folder := os.environ.get("OUT")) and not asked.again:
        (Path(folder) / "partner.json").write_text(as_json(runs, list(catalogue.titles)), encoding="utf-8")


if __name__ == "__main__":
    main()
