"""Turns each submission into a job of its model's factory, or refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from voxlane.engine.api import ForgetVoice, KeepVoice, Priority, Submit, Task
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.job import Job
from voxlane.engine.schedule.request import ModelName

CRITICAL_QUEUE_FACTOR = 4
"""How much longer than `max_waiting` the queue may get before a critical request is refused too."""

MODEL_OF: Mapping[Task, ModelName] = {
    "chat": "chat",
    "complete": "chat",
    "score": "chat",
    "probe": "chat",
    "asr": "asr",
    "tts": "tts",
    "voice": "tts",
    "converse": "speech",
}

CANNOT_CLONE = "this engine cannot make voices from recordings; with a Qwen3-TTS Base checkpoint as tts_model it can"


class JobFactory(Protocol):
    """Opens jobs for one model."""

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""


class Cloning(JobFactory, Protocol):
    """Makes voices from recordings, and knows them by name."""

    def rename(self, command: KeepVoice | ForgetVoice) -> None:
        """Give a voice a name, or forget the name."""

    def close(self) -> None:
        """Stop making voices."""


class JobFactories:
    """The job factories of all models."""

    def __init__(self, factories: Mapping[ModelName, JobFactory], cloning: Cloning | None, max_waiting: int) -> None:
        self._factories = factories
        self._cloning = cloning
        self._max_waiting = max_waiting

    def open(self, submit: Submit, jobs: Mapping[str, Job], now: float) -> Job:
        """Return a job for a submission, or raise Refusal; `jobs` are those under way."""
        if submit.request_id in jobs:
            raise Refusal("duplicate_id", "a request with this id is running")
        most = self._max_waiting * (CRITICAL_QUEUE_FACTOR if submit.priority is Priority.CRITICAL else 1)
        if len(jobs) >= most and (waiting := sum(1 for job in jobs.values() if job.waits)) >= most:
            raise Refusal("overloaded", f"{waiting} requests are waiting")
        factory = self._cloning if submit.task == "voice" else self._factories.get(self._model_of(submit))
        if factory is None:
            missing = CANNOT_CLONE if submit.task == "voice" else f"this engine has no model for {submit.task}"
            raise Refusal("no_model", missing)
        return factory.open(submit, now)

    def _model_of(self, submit: Submit) -> ModelName:
        """Return the model for a submission: texts are spoken by the speech-to-speech model if no other speaks."""
        only_voice = submit.task == "tts" and "tts" not in self._factories
        named = submit.by_speech_model and submit.task in ("asr", "tts")
        return "speech" if only_voice or named else MODEL_OF[submit.task]

    def rename(self, command: KeepVoice | ForgetVoice) -> None:
        """Give a voice a name or forget the name, if this engine can make voices."""
        if self._cloning is not None:
            self._cloning.rename(command)
