"""The functions of the engine whose time account.py counts, by what they are for."""

from __future__ import annotations

from typing import Any

from voxlane.engine import links
from voxlane.engine.audio import vad as vad_stream
from voxlane.engine.jobs import chat, speak_clauses, speak_codec, transcribe
from voxlane.engine.loop import command_queue, core, delivery, execution, job_table, telemetry
from voxlane.engine.models import synthesis
from voxlane.engine.runners.cuda import vad
from voxlane.engine.schedule import scheduler

Place = tuple[Any, str]
"""A class or a module, and the name of a function in it."""

PARTS: dict[str, tuple[Place, ...]] = {
    "receive": ((links.Links, "receive"),),
    "queue": tuple((command_queue.CommandQueue, name) for name in ("add", "urgent", "cheap", "next")),
    "prompts": ((job_table.JobTable, "submit"),),
    "commands": ((core.Core, "_apply"),),
    "detector": ((vad.DeviceVad, "attend"), (vad_stream.VadStream, "expect"), (vad.DeviceVad, "listen")),
    "looking for work": ((core.Core, "_work"),),
    "listening": ((transcribe.TranscribeJob, "work"), (transcribe.TranscribeJob, "advance")),
    "speaking": tuple(
        (job, name)
        for job in (speak_clauses.SpeakClausesJob, speak_codec.SpeakCodecJob)
        for name in ("work", "advance")
    ),
    "phonemes": ((synthesis.Phonemiser, "prepare"),),
    "writing": tuple((chat.TextJob, name) for name in ("advance", "work")),
    "planning": (
        *((scheduler.Scheduler, name) for name in ("schedule", "ready")),
        *((core, name) for name in ("plan_ahead", "completed")),
    ),
    "launching": ((execution.Engines, "launch"), (execution.Engines, "prepare")),
    "collecting": ((execution.Engines, "collect"), (execution.Engines, "wait")),
    "delivering": ((delivery.Delivery, "deliver"), (job_table.JobTable, "apply")),
    "telemetry": tuple((telemetry.Telemetry, name) for name in ("step", "report", "admitted")),
    "sending": ((links.Links, "send"),),
}

EVENTS: tuple[Place, ...] = (
    (links.Links, "receive"),
    (execution.Engines, "launch"),
    (execution.Engines, "collect"),
    (job_table.JobTable, "apply"),
    (vad.DeviceVad, "_send"),
    (vad.DeviceVad, "_take"),
)
"""A pass of the loop that called one of these, and got something, did something."""

DEVICE: list[Place] = []
"""What a pretended device computes; a real one does so beside the thread."""
