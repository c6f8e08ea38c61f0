"""Makes a voice from a recording: it collects the clip, then a thread beside the steps makes the voice.

Encoding half a minute of sound takes seconds of one core. No step waits for it and it uses no device, so other
requests, interruptions among them, are not delayed. voices/cloned.py defines what a voice is.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from voxlane.engine.api import (
    CLIP_RATE,
    CLIP_SECONDS,
    CLIP_TEXT_CHARS,
    Append,
    ForgetVoice,
    KeepVoice,
    RequestStats,
    Submit,
    VoiceMade,
)
from voxlane.engine.errors import REQUEST_FAULTS, Refusal, describe_fault
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.voices.cloned import ClonedVoice, Cloner, ProfileError, TooMuchText, Voices, digest_of

log = logging.getLogger(__name__)

MAX_CLIPS = 8
"""Most recordings at one time: they wait for one thread, and each may be 1.4 MB."""

NICENESS = 10
"""Niceness of the thread. Where steps want its core it gets a tenth of it. On two busy cores steps took 1.1 times as
long, at niceness 0 1.6 times; at 19 a voice of 10 s was not made within 20 s."""

_SAMPLE_BYTES = 2


class CloneVoiceJobFactory:
    """Opens jobs that make voices."""

    def __init__(self, cloner: Cloner, voices: Voices) -> None:
        self._cloner = cloner
        self._voices = voices
        self._thread = ThreadPoolExecutor(1, "clone", _give_way)
        self._open: dict[str, CloneVoiceJob] = {}

    def open(self, submit: Submit, now: float) -> CloneVoiceJob:
        """Return the job that serves `submit`, or raise Refusal."""
        if not submit.clone.consent:
            raise Refusal("bad_request", "a voice is made only with the consent of whom it belongs to")
        if len(submit.text) > CLIP_TEXT_CHARS:
            raise Refusal("too_long", f"the text has {len(submit.text)} characters; {CLIP_TEXT_CHARS} are allowed")
        language = submit.clone.language
        if language and language not in self._cloner.languages:
            raise Refusal("bad_request", f"the languages are {', '.join(sorted(self._cloner.languages))}")
        if len(self._open) >= MAX_CLIPS:
            raise Refusal("overloaded", f"{len(self._open)} voices are being made")
        self._open[submit.request_id] = job = CloneVoiceJob(submit, now, self)
        return job

    def rename(self, command: KeepVoice | ForgetVoice) -> None:
        """Give a voice a name, or forget the name; a voice of another checkpoint is not kept."""
        if isinstance(command, ForgetVoice):
            self._voices.forget(command.name)
            return
        try:
            self._voices.keep(command.name, command.profile)
        except ProfileError as error:
            log.error("voice not kept error=%r", str(error))

    def begin(self, pcm: bytes, submit: Submit, given_up: threading.Event) -> Future[ClonedVoice]:
        """Return the future voice of a clip; setting `given_up` stops the thread."""
        language = submit.clone.language or "auto"
        found = self._voices.alike(digest_of(pcm, submit.text, language))
        if found is None:
            return self._thread.submit(self._cloner.make, pcm, submit.text, language, given_up)
        known: Future[ClonedVoice] = Future()
        known.set_result(found)
        return known

    def leave(self, request_id: str) -> None:
        """Forget a job that is over."""
        self._open.pop(request_id, None)

    def close(self) -> None:
        """Stop making voices, so that the thread and the process can end soon."""
        for job in list(self._open.values()):
            job.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


class CloneVoiceJob(Job):
    """One recording."""

    def __init__(self, submit: Submit, now: float, factory: CloneVoiceJobFactory) -> None:
        super().__init__(submit, now)
        self._factory = factory
        self._clip = bytearray()
        self._heard_s = 0.0
        self._voice: Future[ClonedVoice] | None = None
        self._given_up = threading.Event()

    @property
    def wants_work(self) -> bool:
        """Whether a voice is being made or is ready."""
        return self._voice is not None and not self.paused

    @property
    def awaited(self) -> Future[ClonedVoice] | None:
        """The voice that the thread is making."""
        return None if self.paused else self._voice

    def append(self, more: Append, now: float) -> Change:
        """Take more of the recording."""
        if self._voice is not None:
            return Change()
        self._clip += more.audio
        if self._seconds > CLIP_SECONDS[1]:
            return self._refuse(Refusal("bad_request", f"the recording is longer than {CLIP_SECONDS[1]:g} s"))
        return Change()

    def end_input(self, now: float) -> Change:
        """Note that the recording is complete, and begin to make the voice."""
        if self._voice is not None:
            return Change()
        if self._seconds < CLIP_SECONDS[0]:
            return self._refuse(Refusal("bad_request", f"the recording is shorter than {CLIP_SECONDS[0]:g} s"))
        self._heard_s = self._seconds
        whole = len(self._clip) // _SAMPLE_BYTES * _SAMPLE_BYTES
        self._voice = self._factory.begin(bytes(self._clip[:whole]), self.submit, self._given_up)
        self._clip.clear()
        return Change()

    def work(self, now: float) -> Change:
        """Send the voice if it is ready."""
        voice = self._voice
        if voice is None or not voice.done():
            return Change()
        try:
            made = VoiceMade(self.submit.request_id, self.submit.epoch, voice.result().profile)
        except TooMuchText as error:
            return self._refuse(Refusal("too_long", str(error)))
        except REQUEST_FAULTS as fault:
            log.error("voice failed seconds=%.1f %s", self._heard_s, describe_fault(fault))
            return Change(end="failed")
        return Change([made], end="eos")

    def close(self) -> None:
        """Cancel the thread's work on this recording."""
        self._factory.leave(self.submit.request_id)
        self._given_up.set()
        if self._voice is not None:
            self._voice.cancel()

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return RequestStats(
            prompt_tokens=0,
            output_tokens=0,
            cached_tokens=0,
            queue_s=0.0,
            first_token_s=0.0,
            per_token_s=0.0,
            total_s=now - self.arrival_s,
            preemptions=0,
            audio_s=self._heard_s,
        )

    @property
    def _seconds(self) -> float:
        return len(self._clip) / _SAMPLE_BYTES / CLIP_RATE

    def _refuse(self, refusal: Refusal) -> Change:
        self._factory.leave(self.submit.request_id)
        return Change(refusal=refusal)


def _give_way() -> None:
    own = threading.get_native_id()
    # A process may not lower its niceness, and a thread whose initialiser fails breaks the pool.
    os.setpriority(os.PRIO_PROCESS, own, max(os.getpriority(os.PRIO_PROCESS, own), NICENESS))
