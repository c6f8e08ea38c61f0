"""Records in Redis or Valkey, for servers on many machines: one hash `vx:{session}` each.

One task writes. It sends everything that waits as one pipeline over one connection. Two scripts do the work, so that
a check of the owner and the change that follows it cannot be parted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from voxlane.server.errors import ConfigError, StoreUnavailable
from voxlane.server.store.values import (
    HASH_BYTES,
    PARTS,
    TOKEN_BYTES,
    ClaimedSession,
    SessionClaim,
    SessionWrite,
    WriteOutcome,
)

MOST_AT_ONCE = 512
"""Operations of one pipeline."""

_WRITE = """
local held = redis.call('HMGET', KEYS[1], 'fence', 'owner', 'expires')
local live = held[1] and tonumber(held[3]) > tonumber(ARGV[3])
local behind = live and tonumber(held[1]) < tonumber(ARGV[1])
if live and not behind and (held[1] ~= ARGV[1] or held[2] ~= ARGV[2]) then return 'other_owner' end
if not live or behind then
  if ARGV[5] ~= '1' and not (behind and ARGV[6] == '1') then return 'missing' end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'owner', ARGV[2])
end
redis.call('HSET', KEYS[1], 'expires', ARGV[4])
if ARGV[6] == '1' then
  redis.call('HDEL', KEYS[1], 'tokens', 'config', 'history', 'recent')
  redis.call('HSET', KEYS[1], 'owner', '')
elseif #ARGV > 6 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 7))
end
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[4]) - tonumber(ARGV[3]))
return 'written'
"""
"""ARGV: fence, owner, now, expiry, whether it creates, whether it ends, then fields and values."""

_CLAIM = f"""
local held = redis.call('HMGET', KEYS[1], 'fence', 'tokens', 'expires', 'config', 'history', 'recent')
if not held[1] or tonumber(held[3]) <= tonumber(ARGV[3]) then return false end
local tokens, found = held[2] or '', false
for at = 1, #tokens, {TOKEN_BYTES} do
  if string.sub(tokens, at, at + {HASH_BYTES - 1}) == ARGV[1] then found = true end
end
if not found or (ARGV[5] ~= '0' and ARGV[5] ~= held[1]) then return false end
if ARGV[6] == '1' then return {{held[1], tokens, held[4], held[5], held[6]}} end
local fence = string.format('%.0f', math.max(tonumber(held[1]) + 1, tonumber(ARGV[3])))
redis.call('HSET', KEYS[1], 'fence', fence, 'owner', ARGV[2], 'expires', ARGV[4])
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[4]) - tonumber(ARGV[3]))
return {{fence, tokens, held[4], held[5], held[6]}}
"""
"""ARGV: the token's hash, owner, now, expiry, the fence that it must have or 0, whether it only looks."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    script: str
    arguments: tuple[str | bytes | int, ...]  # the key first
    answer: asyncio.Future[Any]


class RedisStore:
    """Records on a Redis or Valkey server."""

    outlives_process = True

    def __init__(self, url: str, password: str, wait_s: float) -> None:
        self._wait_s = wait_s
        try:
            self._redis = redis.asyncio.Redis.from_url(
                url,
                password=password or None,
                socket_timeout=wait_s,
                socket_connect_timeout=wait_s,
                retry=Retry(NoBackoff(), 0),  # a conversation waits: what fails is tried again with its next change
                max_connections=1,
            )
        except ValueError as error:
            raise ConfigError("store.url must be an address as redis://127.0.0.1:6379/0") from error
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._hashes: dict[str, str] = {}  # the server's names of the scripts

    async def open(self) -> None:
        """Start the task that writes. A server that is down now may come back: that is no error."""
        self._worker = asyncio.create_task(self._work(), name="store")

    async def write(self, write: SessionWrite) -> WriteOutcome:
        """Change a record, if its owner and fence are those of the write."""
        fields: list[str | bytes] = [] if write.tokens is None else ["tokens", write.tokens]
        for part, content in write.parts.items():
            fields += [part, content]
        flags = (int(write.creates), int(write.ends))
        arguments = (_key(write.name), write.fence, write.owner, write.now_ms, write.expires_ms, *flags, *fields)
        outcome = await self._run(_WRITE, arguments)
        return cast(WriteOutcome, outcome.decode())

    async def claim(self, claim: SessionClaim) -> ClaimedSession | None:
        """Give a record to another owner; return None if there is none with this token."""
        how = (claim.fence, int(claim.looks))
        arguments = (_key(claim.name), claim.token_hash, claim.owner, claim.now_ms, claim.expires_ms, *how)
        found = await self._run(_CLAIM, arguments)
        if found is None:
            return None
        parts = {part: content for part, content in zip(PARTS, found[2:], strict=True) if content is not None}
        return ClaimedSession(int(found[0]), found[1], parts)

    async def aclose(self) -> None:
        """Write what waits, and close the connection."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * self._wait_s):
                    await self._queue.join()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        await self._redis.aclose()

    async def _run(self, script: str, arguments: tuple[str | bytes | int, ...]) -> Any:
        if self._worker is None:
            raise StoreUnavailable
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(script, arguments, answer))
        try:
            async with asyncio.timeout(self._wait_s):
                return await answer
        except TimeoutError as error:
            raise StoreUnavailable(detail="timeout") from error

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MOST_AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for waiting in batch[:]:
                if waiting.script is _CLAIM and waiting.answer.done():  # its caller has given up
                    batch.remove(waiting)
                    self._queue.task_done()
            try:
                async with asyncio.timeout(self._wait_s):
                    answers = await self._send(batch)
            except (RedisError, OSError, TimeoutError) as error:
                answers = [StoreUnavailable(detail=type(error).__name__) for _ in batch]
            for waiting, answer in zip(batch, answers, strict=True):
                self._queue.task_done()
                if waiting.answer.done():  # nothing waits for it any more
                    continue
                if isinstance(answer, StoreUnavailable):
                    waiting.answer.set_exception(answer)
                elif isinstance(answer, Exception):
                    waiting.answer.set_exception(StoreUnavailable(detail=type(answer).__name__))
                else:
                    waiting.answer.set_result(answer)

    async def _send(self, batch: Sequence[_Waiting]) -> list[Any]:
        """Send a pipeline and return its answers; give a server that has lost the scripts the scripts again."""
        for _ in range(2):
            if not self._hashes:
                self._hashes = {script: await self._redis.script_load(script) for script in (_WRITE, _CLAIM)}
            pipeline = self._redis.pipeline(transaction=False)
            for waiting in batch:
                pipeline.evalsha(self._hashes[waiting.script], 1, *cast("tuple[str, ...]", waiting.arguments))
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            if not any(isinstance(answer, NoScriptError) for answer in answers):
                break
            self._hashes = {}
        return answers


def _key(name: str) -> str:
    return f"vx:{{{name}}}"
