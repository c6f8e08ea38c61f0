"""`voxlane serve` in its own process, with the real engine and weights; its models serve as tools for a test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from small_model import with_small_model
from waiting import until

from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav, encode_wav

RATE = 48_000
"""Rate of microphone sound: browsers and their devices use it."""

START_S, ANSWER_S = 300.0, 120.0

Samples = NDArray[np.float32]


def words(text: str) -> list[str]:
    """Return the words alone."""
    return re.findall(r"[a-z0-9']+", text.lower())


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class VoiceServer:
    """One server, from its start to its end."""

    def __init__(self, log: Path, *arguments: str, port: int = 0, key: str = "") -> None:
        self.log = log
        options = ("--port", str(port), *with_small_model(arguments))
        command = [sys.executable, "-m", "voxlane.server.cli", "serve", *options]
        environment = {**os.environ, "VOXLANE_API_KEY": key}
        with log.open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._opened = contextlib.ExitStack()
        self._http = self._opened.enter_context(httpx.Client(headers=headers, timeout=ANSWER_S))
        with contextlib.ExitStack() as failed:
            failed.callback(self.kill)
            assert self.process.stdout is not None
            first = self.process.stdout.readline()
            assert first.startswith("voxlane "), f"the server did not start: {log.read_text()}"
            self.url = first.split()[-1]
            self.port = int(self.url.rpartition(":")[2])
            self._http.base_url = httpx.URL(self.url)
            # The openai client repeats what is retryable; a test of errors wants to see each of them.
            client = OpenAI(base_url=f"{self.url}/v1", api_key=key or "none", max_retries=0, timeout=ANSWER_S)
            self.client = self._opened.enter_context(client)
            self.wait_ready()
            failed.pop_all()

    def wait_ready(self) -> None:
        """Poll until the server is healthy."""
        until(lambda: self._http.get("/healthz").status_code == httpx.codes.OK, "the engine is ready", START_S)

    def metric(self, name: str, **labels: str) -> float:
        """Return one metric's value now."""
        for family in text_string_to_metric_families(self._http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        raise AssertionError(f"no metric {name} {labels}")

    def wait_metric(self, value: float, name: str, **labels: str) -> None:
        """Poll until one metric has a value."""
        until(lambda: self.metric(name, **labels) == value, f"{name} {labels} is {value:g}")

    def engine_pid(self) -> int:
        """Return the process number of the engine that serves: the template's fork, or the server's child."""
        template = self.template_pid()
        return next(iter(_children(template)), template)

    def template_pid(self) -> int:
        """Return the process number of the server's child that is its engine: others decode sound."""
        children = _children(self.process.pid)
        (engine,) = (pid for pid in children if b"voxlane.engine" in Path(f"/proc/{pid}/cmdline").read_bytes())
        return engine

    def say(self, text: str) -> Samples:
        """Return a text spoken by the server's voice, without silence around it."""
        body = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "wav"}
        answer = self._http.post("/v1/audio/speech", json=body).raise_for_status()
        samples, rate = decode_wav(answer.content)
        sound = np.asarray(resample(samples, rate, RATE))
        loud = np.flatnonzero(np.abs(sound) > 0.02)
        return sound[loud[0] : loud[-1] + 1]

    def transcribe(self, sound: Samples, rate: int) -> str:
        """Return the transcript of the server's ASR model."""
        wav = encode_wav(np.asarray(resample(sound, rate, 16_000)), 16_000)
        answer = self._http.post(
            "/v1/audio/transcriptions", files={"file": ("heard.wav", wav)}, data={"model": "whisper-1"}
        )
        return str(answer.raise_for_status().json()["text"])

    def stop(self) -> int:
        """Stop the server as an operator would; return its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server; its engine notices by itself."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        self._opened.close()
        assert self.process.stdout is not None
        if not self.process.stdout.closed:  # it is not the second end
            self.process.send_signal(how)  # nothing happens where the process has ended
            self.process.communicate(timeout=60)
        return int(self.process.returncode)
