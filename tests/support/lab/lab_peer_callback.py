"""callback-voice judges recorded calls, or calls an agent and judges that. Runs in an environment of its own.

    python lab_peer_callback.py score FOLDER          every folder in it has call.wav, caller_clean.wav, events.jsonl
    python lab_peer_callback.py call FOLDER PLAN      plan.json: {"clips": {text: file.npy}, "calls": [...]}

The verdicts are printed as JSON. Its level detector is used: Silero does not take tones for speech.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from callback_voice.caller.brain.scripted_brain import ScriptedBrain
from callback_voice.caller.engine.call_session import CallSession, CallSetup
from callback_voice.caller.speech.caller_speech import CallerSpeech
from callback_voice.chaos.build_processors import build_processors
from callback_voice.core.config.target_config import WebSocketTarget
from callback_voice.core.models.caller_spec import CallerSpec
from callback_voice.core.models.chaos_config import ChaosConfig
from callback_voice.core.models.chaos_event import ChaosEvent
from callback_voice.core.models.thresholds import Thresholds
from callback_voice.providers.vad.energy_vad import EnergyVad
from callback_voice.scoring.score_call import score_call
from callback_voice.transports.websocket_transport import WebSocketTransport

LATE = "late_s.txt"
"""How late the caller's worst tick was."""


class Clips:
    """Speech that was made before."""

    name = identity = "clips"

    def __init__(self, files: dict[str, str]) -> None:
        self._sounds = {text: np.load(file).astype(np.float32) for text, file in files.items()}

    async def synthesize(self, text: str, **_: Any) -> Any:
        """Return the clip of a text."""
        return self._sounds[text]


def verdict(folder: Path) -> dict[str, Any]:
    """Return what callback-voice measures in a recorded call."""
    metrics = {metric.name: metric for metric in score_call(folder, Thresholds(), EnergyVad()).metrics}
    return {
        "yields_s": metrics["time_to_yield_p95_s"].samples,
        "false_yields": metrics["false_yields"].value,
        "responses_s": metrics["response_latency_p95_s"].samples,
        "unanswered": metrics["unanswered_turns"].value,
        "late_s": float((folder / LATE).read_text()) if (folder / LATE).exists() else 0.0,
    }


async def call(folder: Path, clips: Clips, plan: dict[str, Any]) -> None:
    """Call an agent, and leave the recording in a folder."""
    spec = CallerSpec(persona="a person", goal="a story", speaks_first=True, script=tuple(plan["script"]))
    events = [ChaosEvent.from_yaml(event, number) for number, event in enumerate(plan["events"])]
    setup = CallSetup(
        call_id=plan["name"],
        spec=spec,
        max_duration_s=plan["seconds"],
        transport=WebSocketTransport(WebSocketTarget(url=plan["url"])),
        brain=ScriptedBrain(spec.script or ()),
        speech=CallerSpeech(clips, spec),
        make_vad=EnergyVad,
        processors=tuple(build_processors(ChaosConfig().model_copy(update={"events": events}), 1, folder)),
    )
    outcome = await CallSession(setup).run()
    outcome.recorder.save(folder / plan["name"])
    outcome.log.save(folder / plan["name"] / "events.jsonl")
    (folder / plan["name"] / LATE).write_text(str(outcome.max_lateness_s))


async def call_all(folder: Path, plan: dict[str, Any]) -> None:
    """Hold all calls at the same time."""
    clips = Clips(plan["clips"])
    for one in plan["calls"]:
        (folder / one["name"]).mkdir(parents=True, exist_ok=True)
    await asyncio.gather(*(call(folder, clips, one) for one in plan["calls"]))


def main() -> None:
    """Do what the command line says."""
    folder = Path(sys.argv[2])
    if sys.argv[1] == "call":
        asyncio.run(call_all(folder, json.loads(Path(sys.argv[3]).read_text())))
    print(json.dumps({one.name: verdict(one) for one in sorted(folder.iterdir()) if one.is_dir()}))


if __name__ == "__main__":
    main()
