"""Where submissions become jobs, each at the desk of its model, or are refused. It knows no job and no schedule."""

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
}

CANNOT_CLONE = "this engine cannot make voices from recordings; with a Qwen3-TTS Base checkpoint as tts_model it can"


class JobFactory(Protocol):
    """Where jobs for one model are opened."""

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""


class Cloning(JobFactory, Protocol):
    """Where voices are made, and known by their names."""

    def rename(self, command: KeepVoice | ForgetVoice) -> None:
        """Let a name mean a voice, or nobody."""

    def close(self) -> None:
        """Leave every voice half made."""


class Desks:
    """The desks of all models."""

    def __init__(self, desks: Mapping[ModelName, JobFactory], cloning: Cloning | None, max_waiting: int) -> None:
        self._desks = desks
        self._cloning = cloning
        self._max_waiting = max_waiting

    def open(self, submit: Submit, jobs: Mapping[str, Job], now: float) -> Job:
        """Return a job for a submission beside the `jobs` there are, or raise Refusal."""
        if submit.request_id in jobs:
            raise Refusal("duplicate_id", "a request with this id is running")
        most = self._max_waiting * (CRITICAL_QUEUE_FACTOR if submit.priority is Priority.CRITICAL else 1)
        if len(jobs) >= most and (waiting := sum(1 for job in jobs.values() if job.waits)) >= most:
            raise Refusal("overloaded", f"{waiting} requests are waiting")
        desk = self._cloning if submit.task == "voice" else self._desks.get(MODEL_OF[submit.task])
        if desk is None:
            missing = CANNOT_CLONE if submit.task == "voice" else f"this engine has no model for {submit.task}"
            raise Refusal("no_model", missing)
        return desk.open(submit, now)

    def rename(self, command: KeepVoice | ForgetVoice) -> None:
        """Let a name mean a voice, or nobody, where voices have names."""
        if self._cloning is not None:
            self._cloning.rename(command)
