"""Recordings and transcripts in a folder: written by a thread, kept for some days, bounded in size.

Nothing that goes wrong here reaches a conversation: its recording stops, a metric and the log say so.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from voxlane.server.config import RecordingsConfig
from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import (
    Duck,
    Interrupted,
    ItemCut,
    ItemPlaced,
    Release,
    ReplyDone,
    ReplyStarted,
    ServerEvent,
    UserTurn,
)
from voxlane.server.errors import ConfigError
from voxlane.server.log import line
from voxlane.server.watching.disk_thread import DiskThread
from voxlane.server.watching.heard_sound import KEPT_REPLIES, HeardCut, HeardPiece, HeardReplies, Timeline
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.stereo_file import RATE, StereoFile, repair
from voxlane.server.watching.watched_call import WatchedCall

logger = logging.getLogger(__name__)

OURS = re.compile(r"\d{8}T\d{6}Z-voice-[0-9a-f]{16}\.(wav|jsonl)")
"""Names of files that clean-up may delete. Other files in the folder are left alone."""

BATCH_SECONDS = 0.5
"""How often sound is handed to the thread. A crash loses at most this much."""

FREE_BYTES = 256 << 20
"""Space that recordings leave free on their disk: others need it, the store of conversations for one."""

PENDING_BYTES = 64 << 20
"""Sound of all conversations that may wait for the disk: half an hour of one, or 20 s of a hundred."""

WRITTEN_SECONDS = 60.0
"""A file that was changed so recently may still be written by another server that shares the folder."""

CLEAN_SECONDS = 3600.0
"""Time between two clean-ups."""


class Recordings:
    """The folder, and the thread that writes into it."""

    def __init__(self, config: RecordingsConfig, metrics: Metrics, free_bytes: int = FREE_BYTES) -> None:
        self.config = config
        self._metrics = metrics
        self._folder = _usable(Path(config.folder))
        self._free_bytes = free_bytes
        self._thread: DiskThread | None = None
        self._cleaner: asyncio.Task[None] | None = None
        # Of the thread alone:
        self._writing: set[Path] = set()
        self._used = 0
        # Of the event loop and of the thread:
        self._lock = threading.Lock()
        self._pending_bytes = 0

    async def start(self) -> None:
        """Repair what a crash has left, delete what is too old, and do so every hour."""
        self._thread = DiskThread()
        self.do(self._repair_all)
        self.do(self._clean)
        self._cleaner = asyncio.create_task(self._clean_often(), name="recordings clean-up")

    async def aclose(self) -> None:
        """Finish the files."""
        if self._cleaner is not None:
            self._cleaner.cancel()
            with suppress(asyncio.CancelledError):
                await self._cleaner
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.aclose()

    async def settled(self) -> None:
        """Wait until everything handed over so far is on the disk."""
        if self._thread is not None:
            await self._thread.finished()

    def open(self, call: WatchedCall, speak_rate: int) -> ConversationRecording | None:
        """Begin to record a conversation; None before the server has started."""
        return None if self._thread is None else ConversationRecording(self, call, speak_rate)

    def do(self, job: Callable[[], None]) -> None:
        """Run a job in the thread; drop it after the end."""
        if self._thread is not None:
            self._thread.do(job)

    def waits(self, count: int) -> bool:
        """Count bytes that wait for the disk, or that no longer do; return whether too many wait."""
        with self._lock:
            self._pending_bytes += count
            return self._pending_bytes > PENDING_BYTES

    async def _clean_often(self) -> None:
        while True:
            await asyncio.sleep(CLEAN_SECONDS)
            self.do(self._clean)

    # ---- in the thread

    def path(self, name: str) -> Path:
        """Return the path of a file that is now being written; raise OSError if there is no room for it."""
        path = self._folder / name
        self._check_room()
        self._writing.add(path)
        return path

    def grown(self, count: int) -> None:
        """Count bytes that were written; raise OSError if there is no room for more."""
        self._used += count
        self._check_room()

    def done(self, name: str) -> None:
        """Note that a file is complete."""
        self._writing.discard(self._folder / name)

    def stopped(self, session: str, error: OSError) -> None:
        """Count and log a recording that could not go on."""
        reason = errno.errorcode.get(error.errno or 0, "unknown")
        self._metrics.recordings_stopped.labels(reason).inc()
        logger.error(line("recording stopped", session=session, reason=reason, detail=error.strerror))

    def _check_room(self) -> None:
        system = os.statvfs(self._folder)
        if system.f_bavail * system.f_frsize < self._free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._used > self.config.most_mib << 20:
            self._clean()
        if self._used > self.config.most_mib << 20:
            raise OSError(errno.EDQUOT, "recordings.most_mib is reached by calls that go on")

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return time, size and path of our files, the oldest first."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if OURS.fullmatch(entry.name):
                        facts = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(facts.st_mode):
                            found.append((facts.st_mtime, facts.st_blocks * 512, Path(entry.path)))
        return sorted(found)

    def _clean(self) -> None:
        """Delete files that are too old, and the oldest ones while all together are too large."""
        try:
            files = self._files()
        except OSError as error:
            logger.error(line("recordings clean-up failed", reason=error.strerror))
            return
        used, deleted = sum(size for _, size, _ in files), 0
        now_s = time.time()
        oldest_s = now_s - self.config.keep_days * 86400
        for changed_s, size, path in files:
            written = path in self._writing or changed_s > now_s - WRITTEN_SECONDS
            if written or (changed_s >= oldest_s and used <= self.config.most_mib << 20):
                continue
            with suppress(FileNotFoundError):
                try:
                    path.unlink()
                except OSError as error:
                    logger.error(line("recordings clean-up failed", reason=error.strerror))
                    break
            used, deleted = used - size, deleted + 1
        self._used = used
        self._metrics.recordings_bytes.set(used)
        if deleted:
            logger.info(line("recordings deleted", files=deleted, left_bytes=used))

    def _repair_all(self) -> None:
        repaired = 0
        for _, _, path in self._files():
            if path.suffix == ".wav":
                with suppress(OSError):
                    repaired += repair(path)
        if repaired:
            logger.info(line("recordings repaired", files=repaired))


class ConversationRecording:
    """The files of one conversation; each begins with the first of its content.

    The methods are called on the event loop and only hand work to the thread.
    """

    def __init__(self, recordings: Recordings, call: WatchedCall, speak_rate: int) -> None:
        self._recordings = recordings
        self._session = call.session
        moment = datetime.fromtimestamp(call.began_s, UTC)
        self._stem = f"{moment:%Y%m%dT%H%M%SZ}-{call.session}"
        began = moment.isoformat(timespec="seconds")
        self._head: dict[str, object] = {"began": began, "session": call.session, "dialect": call.dialect}
        self._keeps_sound, self._keeps_words = recordings.config.audio, recordings.config.transcripts
        self.sound_name = self.words_name = ""  # until there is sound, until there are words
        self._loop = asyncio.get_running_loop()
        self._caller = Timeline()
        self._replies = HeardReplies(speak_rate)
        self._told: dict[str, tuple[int, str]] = {}  # the turn and the text of replies, by item, oldest first
        self._items: dict[int, str] = {}  # the items of replies that are not over, by epoch
        self._gain = 1.0
        self._batch: list[HeardPiece | HeardCut] = []
        self._batch_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failed = False
        self._speak_rate = speak_rate or RATE
        # Of the thread alone:
        self._file: StereoFile | None = None

    # ---- on the event loop

    def heard(self, pcm: bytes, now: float) -> None:
        """Take sound of the caller that ends now."""
        if self._keeps_sound:
            at_s, joins = self._caller.place(len(pcm) / 2 / RATE, now)
            self._add(HeardPiece(at_s, pcm, joins))

    def observe(self, reply: Reply | None, now: float) -> None:
        """Take what was heard of the current reply since the last look."""
        if self._keeps_sound:
            for piece in self._replies.observe(reply, now, self._gain):
                self._add(piece)

    def follow(self, event: ServerEvent, now: float) -> None:
        """Take an event that the client is sent."""
        if self._keeps_sound:
            for piece in self._replies.follow(event, now):
                self._add(piece)
        match event:
            case Duck(_, gain):
                self._gain = gain
            case Release():
                self._gain = 1.0
            case UserTurn(turn, text):
                self._tell(at_s=round(now, 2), turn=turn, speaker="caller", text=text)
            case ItemPlaced(item) if item.kind == "user" and item.text:  # a Realtime client's text
                self._tell(at_s=round(now, 2), speaker="caller", text=item.text)
            case ReplyStarted(epoch, turn, item) if item:  # an aside is no part of the conversation
                self._gain = 1.0
                self._items[epoch], self._told[item] = item, (turn, "")
                if len(self._told) > KEPT_REPLIES:
                    del self._told[next(iter(self._told))]
            case ReplyDone(epoch, text) | Interrupted(epoch, text) if epoch in self._items:
                self._said(self._items.pop(epoch), text, now, whole=isinstance(event, ReplyDone))
            case ItemCut(item, _, heard) if item in self._told and self._told[item][1] != heard:
                self._said(item, heard, now, whole=False, corrects=True)
            case _:
                pass

    def _said(self, item: str, text: str, now: float, *, whole: bool, corrects: bool | None = None) -> None:
        """Write down what was heard of a reply; `corrects`: an earlier line about it said too much."""
        turn = self._told.get(item, (0, ""))[0]
        self._told[item] = turn, text
        self._tell(at_s=round(now, 2), turn=turn, speaker="assistant", text=text, whole=whole, corrects=corrects)

    def close(self, reason: str) -> None:
        """Complete the files."""
        self._flush()
        if self.words_name:
            self._tell(ended=datetime.now(UTC).isoformat(timespec="seconds"), reason=reason)
        self._recordings.do(self._end)

    def _add(self, piece: HeardPiece | HeardCut) -> None:
        if self._failed:
            return
        size = len(piece.pcm) if isinstance(piece, HeardPiece) else 0
        if not self.sound_name:
            self.sound_name = f"{self._stem}.wav"
            self._recordings.do(self._begin)
        self._batch.append(piece)
        self._batch_bytes += size
        if self._recordings.waits(size):
            self._fail(OSError(errno.ETIMEDOUT, "the disk is too slow"))
        elif self._timer is None:
            self._timer = self._loop.call_later(BATCH_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, size = self._batch, self._batch_bytes
        self._batch, self._batch_bytes = [], 0
        if batch:
            self._recordings.do(lambda: self._write(batch, size))

    def _tell(self, **fields: object) -> None:
        if not self._keeps_words or self._failed:
            return
        lines = [{name: value for name, value in fields.items() if value is not None}]
        if not self.words_name:
            self.words_name = f"{self._stem}.jsonl"
            lines.insert(0, self._head)
        text = "".join(json.dumps(one) + "\n" for one in lines)
        self._recordings.do(lambda: self._append(text))

    # ---- in the thread

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            self._recordings.stopped(self._session, error)

    def _begin(self) -> None:
        try:
            self._file = StereoFile(self._recordings.path(self.sound_name), self._speak_rate)
        except OSError as error:
            self._fail(error)

    def _write(self, batch: list[HeardPiece | HeardCut], size: int) -> None:
        self._recordings.waits(-size)
        if self._failed or self._file is None:
            return
        try:
            self._file.write(batch)
            self._recordings.grown(2 * size)  # a frame has two channels; where both speak, clean-up counts again
        except OSError as error:
            self._fail(error)

    def _append(self, text: str) -> None:
        if self._failed:
            return
        try:
            path = self._recordings.path(self.words_name)
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(path, flags, 0o600)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)
            self._recordings.grown(len(text))
        except OSError as error:
            self._fail(error)

    def _end(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self._fail(error)
        for name in (self.sound_name, self.words_name):
            if name:
                self._recordings.done(name)


def _usable(folder: Path) -> Path:
    """Return a folder that files can be written into, made if need be; raise ConfigError if there is none."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"recordings.folder: {folder}: {error.strerror or error}") from error
    return folder
