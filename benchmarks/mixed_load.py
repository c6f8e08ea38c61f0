"""Two people speak, a chat answers and a voice speaks, all in one engine at once: how long each of them waits.

Audio arrives in real time in pieces of 0.1 s; the chat and the reply start while both people speak. The same run also
does each piece of work alone: the ratio is the cost of sharing. SmolLM2-135M, Moonshine tiny and hibari, in this
process, without a server or a socket.

Time: about a minute, all of it in real time.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from speaking import PARAGRAPH, clauses
from support.command_line import command_line
from support.common import engine, machine, request, table
from support.speech import PIECE_S, clip, pieces

from voxlane.engine.api import Append, EndInput, Finished, FromEngine, Samples, Submit, Text, ToEngine, Words
from voxlane.engine.loop.core import Core

TURN_S = 8.0
CHAT_TOKENS = 96
START_S = 2.0
PROMPT = "Question: Why do leaves change colour in autumn?\nAnswer:"
RATE = 24_000


@dataclass
class Diary:
    """When each event happened, by request."""

    sent: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)  # when its input was complete
    texts: dict[str, list[float]] = field(default_factory=dict)
    spoken: list[tuple[float, int]] = field(default_factory=list)  # (when, samples so far)
    finished: dict[str, float] = field(default_factory=dict)

    def note(self, messages: list[FromEngine], now: float) -> None:
        """Note the messages that came out."""
        for message in messages:
            match message:
                case Text(name) | Words(name):
                    self.texts.setdefault(name, []).append(now)
                case Samples():
                    self.spoken.append((now, message.offset + len(message.pcm) // 2))
                case Finished(name, _, reason):
                    if reason not in ("eos", "length"):
                        raise RuntimeError(f"{name} ended with {reason}")
                    self.finished[name] = now
                case _:
                    pass


def events(tasks: set[str]) -> list[tuple[float, str, list[ToEngine]]]:
    """Return the script: (seconds, request, commands)."""
    script: list[tuple[float, str, list[ToEngine]]] = []
    for index, name in enumerate(("hear 1", "hear 2")):
        if name in tasks:
            script.append((0.0, name, [Submit(name, "asr")]))
            parts = pieces(clip("two_cities.wav", 9.0 * index, TURN_S))
            for number, piece in enumerate(parts):
                script.append(((number + 1) * PIECE_S, name, [Append(name, audio=piece)]))
            script.append((len(parts) * PIECE_S, name, [EndInput(name)]))
    if "chat" in tasks:
        script.append((START_S, "chat", [request("chat", PROMPT, CHAT_TOKENS)]))
    if "say" in tasks:
        appends = [Append("say", text=part) for part in clauses(PARAGRAPH)]
        script.append((START_S, "say", [Submit("say", "tts"), *appends, EndInput("say")]))
    return sorted(script, key=lambda event: event[0])


def perform(core: Core, tasks: set[str]) -> Diary:
    """Run the script against the clock."""
    diary, script, begin = Diary(), events(tasks), time.perf_counter()
    while script or core.busy:
        now = time.perf_counter() - begin
        while script and script[0][0] <= now:
            due, name, commands = script.pop(0)
            diary.sent.setdefault(name, due)
            if any(isinstance(command, EndInput) for command in commands):
                diary.ended[name] = due
            diary.note(core.handle(commands), now)
        if core.busy:
            diary.note(core.step(), time.perf_counter() - begin)
        elif script:
            time.sleep(max(0.0, script[0][0] - (time.perf_counter() - begin)))
    return diary


def figures(diary: Diary) -> dict[str, float]:
    """Return each task's waiting times in milliseconds."""
    found: dict[str, float] = {}
    for name in ("hear 1", "hear 2"):
        if name in diary.sent:
            gaps = [b - a for a, b in zip(diary.texts[name], diary.texts[name][1:], strict=False)]
            found[f"{name}: words after the end of the turn"] = diary.finished[name] - diary.ended[name]
            found[f"{name}: longest wait between partials"] = max(gaps)
    if "chat" in diary.sent:
        times = diary.texts["chat"]
        found["chat: first token"] = times[0] - diary.sent["chat"]
        found["chat: per token"] = (times[-1] - times[0]) / max(1, len(times) - 1)
    if "say" in diary.sent:
        first = diary.spoken[0][0]
        found["say: first sample"] = first - diary.sent["say"]
        # A listener who starts with the first sample has an underrun if a clause comes after the last was played.
        late = [
            when - first - before / RATE for (when, _), (_, before) in zip(diary.spoken[1:], diary.spoken, strict=False)
        ]
        found["say: longest silence of the listener"] = max(0.0, *late)
    return {name: seconds * 1e3 for name, seconds in found.items()}


def main() -> None:
    """Measure and print the table."""
    command_line(__doc__).parse_args()
    core = engine(asr_model="moonshine-tiny-en", tts_model="hibari").core
    tasks = ("hear 1", "hear 2", "chat", "say")
    alone: dict[str, float] = {}
    for task in tasks:
        alone |= figures(perform(core, {task}))
    runs = [figures(perform(core, set(tasks))) for _ in range(3)]
    rows = []
    for name, before in alone.items():
        together = statistics.median(run[name] for run in runs)
        ratio = f"{together / before:.1f}" if before >= 1 else ""
        rows.append([name, f"{before:.0f}", f"{together:.0f}", ratio])
    table(f"mixed load, {machine()}: milliseconds", ["", "alone", "all at once", "ratio"], rows)


if __name__ == "__main__":
    main()
