"""Drive a whole engine in this process: submit, step, collect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from unittest import mock

from small_model import NAME as SMALL

from voxlane.engine.api import EngineConfig, Finished, FromEngine, Refused, SamplingParams, Submit, Text, ToEngine
from voxlane.engine.build import assemble as assembling
from voxlane.engine.build.assemble import Assembly, assemble
from voxlane.engine.loop.core import Core


class Driver:
    """A core and all its output."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.messages: list[FromEngine] = []

    def send(self, *commands: ToEngine) -> None:
        self.messages += self.core.handle(commands)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            if self.core.busy:
                self.messages += self.core.step()

    def finish(self) -> None:
        while self.core.busy:
            self.step()

    def run(self) -> None:
        self.finish()
        self.messages += self.core.idle()  # audits the blocks

    def text(self, request_id: str) -> str:
        pieces = (m.text for m in self.messages if isinstance(m, Text) and m.request_id == request_id)
        return "".join(pieces)

    def end(self, request_id: str) -> Finished | Refused:
        (end,) = [m for m in self.messages if isinstance(m, Finished | Refused) and m.request_id == request_id]
        return end


def chat_config(**settings: object) -> EngineConfig:
    """Return the configuration of an engine with chat only: it loads in half the time."""
    return EngineConfig(**{"model": SMALL, "asr_model": "", "tts_model": "", **settings})  # type: ignore[arg-type]


def assemble_float32(config: EngineConfig) -> Assembly:
    """Return an engine with unpacked weights, after a short warm-up: the usual one takes ten seconds."""
    with mock.patch.object(assembling, "WARM_UP_PROMPTS", (4, 2)):
        return assemble(dataclasses.replace(config, weights="float32"))


def complete(request_id: str, prompt: str, count: int, **settings: object) -> Submit:
    """Return a greedy completion of exactly `count` tokens."""
    return Submit(
        request_id, "complete", text=prompt, sampling=SamplingParams(max_tokens=count, ignore_eos=True), **settings
    )  # type: ignore[arg-type]


def run_all(core: Core, submits: Iterable[Submit]) -> list[str]:
    """Run requests together and return their texts in order."""
    driver, submitted = Driver(core), list(submits)
    driver.send(*submitted)
    driver.run()
    return [driver.text(submit.request_id) for submit in submitted]


PROMPTS: Sequence[str] = (
    "The history of the telephone begins with",
    "Once upon a time, in a village by the sea, there lived an old clockmaker who",
    "def fibonacci(n):\n    ",
    "Question: Why do leaves change colour in autumn?\nAnswer:",
    "The three most important things to remember when you cook rice are",
    "In 1969, two people walked on the Moon for the first time.",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "A list of ten animals: 1. cat 2. dog 3.",
)
