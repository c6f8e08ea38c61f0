"""`voxlane chat`: a conversation in the terminal, with an engine of its own.

Ctrl-C ends a reply, not the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import platformdirs
from msgspec import structs

from voxlane.engine.api import (
    ChatMessage,
    EngineConfig,
    Finished,
    Priority,
    Ready,
    RequestStats,
    Submit,
    Text,
    sampling_of,
)
from voxlane.server import limits
from voxlane.server.commands.progress import Progress
from voxlane.server.commands.terminal import takes_text, write_text, write_when_taken
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess
from voxlane.server.errors import ConfigError, ContextTooLong, ModelFailed, VoxlaneError

T = TypeVar("T")

HISTORY_LINES = 1000
"""Lines of input kept for the arrow keys."""

HELP = """\
/reset          forget the conversation
/system TEXT    say how the model should behave, and start again; without TEXT: back to none
/stats          show or hide the speed after each reply
/help           this
/quit           leave (so does Ctrl-D)
Ctrl-C          stop the reply"""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What the command line asked for."""

    system: str = ""
    temperature: float | None = None  # None: the model's own
    seed: int | None = None
    max_tokens: int | None = None
    stats: bool = False

    def __post_init__(self) -> None:
        least, most = limits.TEMPERATURES
        if self.temperature is not None and not least <= self.temperature <= most:
            raise ConfigError(f"--temperature must be between {least:g} and {most:g}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError("--max-tokens must be at least 1")
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 63:
            raise ConfigError("--seed must fit 64 bits")


@dataclass(slots=True)
class ChatHistory:
    """The history that the model is given."""

    system: str = ""
    turns: list[ChatMessage] = field(default_factory=list)

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return the whole conversation, the system message first."""
        head = [ChatMessage("system", self.system)] if self.system else []
        return (*head, *self.turns)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The reply to one message."""

    text: str
    stats: RequestStats | None  # None: interrupted


def run_chat(
    config: EngineConfig, options: ChatOptions, message: str | None, *, engine_command: Sequence[str] = ENGINE_COMMAND
) -> int:
    """Ask `message` (or what is piped in) and return, or hold a conversation when neither is there."""
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read()
    if message is not None and not message.strip():
        raise ConfigError("there is nothing to ask: the message is empty")
    if not config.model:
        raise ConfigError("engine.model is empty: there is no model to chat with")
    config = replace(config, asr_model="", tts_model="", speech_model="")
    with asyncio.Runner() as runner:  # one loop for several runs: between replies the program waits in input()
        link = runner.run(_start(config, engine_command))
        interruption = Interruption()
        try:
            chat = Chat(runner, link, options, interruption)
            with interruption.by_ctrl_c():
                return chat.once(message) if message is not None else chat.interact()
        finally:
            runner.run(link.stop())


async def _start(config: EngineConfig, command: Sequence[str]) -> EngineProcess:
    with Progress(sys.stderr) as progress:
        link = EngineProcess(config, command=command, observers=(progress,))
        link.start()
        try:
            await link.wait_ready()
        except BaseException:  # Ctrl-C too: the engine is a process of its own and would outlive this one
            await link.stop()
            raise
    return link


class Interruption:
    """Decides what a Ctrl-C ends at the moment: the line being typed, the reply, or nothing.

    Python's own handler raises an exception wherever the program is, and would end it between a reply and the prompt.
    """

    def __init__(self) -> None:
        self._reading = False
        self._work: asyncio.Task[object] | None = None

    @contextlib.contextmanager
    def by_ctrl_c(self) -> Iterator[None]:
        """Take Ctrl-C from Python for a while; a program that was started to ignore it still does."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, lambda *_: self._take())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _take(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work.get_loop().call_soon_threadsafe(lambda: None)  # wakes it
        elif self._reading:
            self._reading = False  # a second press means the same
            raise KeyboardInterrupt

    def read_line(self, prompt: str) -> str:
        """Return what is typed; raise KeyboardInterrupt when Ctrl-C discards it."""
        self._reading = True
        try:
            return input(prompt)
        finally:
            self._reading = False

    async def ending(self, work: Awaitable[T]) -> T:
        """Await what a Ctrl-C cancels."""
        self._work = asyncio.current_task()
        try:
            return await work
        finally:
            self._work = None


class Chat:
    """Drives one conversation."""

    def __init__(
        self, runner: asyncio.Runner, link: EngineProcess, options: ChatOptions, interruption: Interruption
    ) -> None:
        self._runner = runner
        self._link = link
        self._options = options
        self._interruption = interruption
        self._conversation = ChatHistory(options.system)
        self._shows_stats = options.stats

    def once(self, message: str) -> int:
        """Print the reply to one message."""
        reply = self._ask(message)
        return 0 if reply.stats is not None else 130

    def interact(self) -> int:
        """Read messages and print replies until the person leaves."""
        ready = self._link.ready
        assert ready is not None
        print(_greeting(ready))
        with _line_editing():
            while (message := self._read_message()) is not None:
                if message.startswith("/"):
                    if not self._command(message):
                        break
                elif message:
                    self._turn(message)
        return 0

    def _turn(self, message: str) -> None:
        try:
            self._ask(message)
        except VoxlaneError as error:
            print(f"voxlane: {error.message}", file=sys.stderr)
            if isinstance(error, ContextTooLong):
                print("(/reset starts again with an empty history)")
            if error.retryable:
                self._await_engine()

    def _await_engine(self) -> None:
        try:
            self._runner.run(self._interruption.ending(self._link.wait_ready()))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # Ctrl-C while the engine starts: leave

    def _command(self, text: str) -> bool:
        """Obey a /command; return False to leave."""
        name, _, rest = text.partition(" ")
        match name:
            case "/quit" | "/exit" | "/bye":
                return False
            case "/reset":
                self._conversation.turns.clear()
                print("(forgotten)")
            case "/system":
                self._conversation = ChatHistory(rest.strip())
                print("(a new conversation)")
            case "/stats":
                self._shows_stats = not self._shows_stats
                print(f"(stats {'on' if self._shows_stats else 'off'})")
            case "/help":
                print(HELP)
            case _:
                print("(no such command; /help lists them)")
        return True

    def _read_message(self) -> str | None:
        """Return the next line, "" when Ctrl-C discarded it, None at the end of input."""
        try:
            return self._interruption.read_line("> ").strip()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit leaves)")
            return ""

    def _ask(self, message: str) -> ChatReply:
        """Print the reply as it comes; keep message and reply only if the engine accepted them."""
        turns = self._conversation.turns
        turns.append(ChatMessage("user", message))
        try:
            reply = self._reply()
        except BaseException:  # Ctrl-C too: a message without a reply would be answered with the next one
            turns.pop()
            raise
        # An interrupted reply stays in the history up to where it was shown: that is what the person has read.
        turns.append(ChatMessage("assistant", reply.text))
        if self._shows_stats and reply.stats is not None:
            print(_speed(reply.stats), file=sys.stderr)
        return reply

    def _reply(self) -> ChatReply:
        pieces: list[str] = []
        end: Finished | None = None
        try:
            end = self._runner.run(self._interruption.ending(self._stream(pieces)))
        except asyncio.CancelledError:  # leaving the stream has cancelled the request in the engine
            if not takes_text(sys.stdout):
                raise KeyboardInterrupt from None  # the terminal takes no more text
            write_text(sys.stdout, " (interrupted)\n")
        if end is not None and end.reason == "failed":
            raise ModelFailed
        return ChatReply("".join(pieces), None if end is None else end.stats)

    async def _stream(self, pieces: list[str]) -> Finished | None:
        """Write the reply as it comes, and keep it in `pieces`; return its end."""
        end: Finished | None = None
        async with self._link.submit(self._submission()) as stream:
            async for output in stream:
                if isinstance(output, Text):
                    await write_when_taken(sys.stdout, output.text)
                    pieces.append(output.text)
                elif isinstance(output, Finished):
                    end = output
        await write_when_taken(sys.stdout, "\n")
        return end

    def _submission(self) -> Submit:
        options, ready = self._options, self._link.ready
        assert ready is not None
        most = ready.context_tokens if options.max_tokens is None else options.max_tokens
        return Submit(
            request_id=secrets.token_hex(8),
            task="chat",
            messages=self._conversation.messages(),
            sampling=structs.replace(
                sampling_of(options.temperature),
                seed=options.seed,
                max_tokens=most,
                loop_tokens=limits.WRITTEN_LOOP_TOKENS,
            ),
            priority=Priority.HIGH,
        )


@contextlib.contextmanager
def _line_editing() -> Iterator[None]:
    """Give input() arrow keys and a history that lasts, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = Path(platformdirs.user_state_dir("voxlane")) / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Only the person may read what they typed.
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)


def _greeting(ready: Ready) -> str:
    about = (
        f"{ready.parameters / 1e6:.0f}M parameters",
        f"{ready.weights} weights",
        f"{ready.context_tokens} tokens of context",
        f"temperature {ready.sampling.temperature:g}",
    )
    adapted = f" and adapter {ready.adapter}" if ready.adapter else ""
    told = f"{ready.model}{adapted} ({', '.join(about)})"
    greeting = f"{told}. /help lists commands, Ctrl-C stops a reply, Ctrl-D leaves."
    return f"{greeting}\n({ready.missed})" if ready.missed else greeting


def _speed(stats: RequestStats) -> str:
    rate = f"{1 / stats.per_token_s:.1f} tokens/s" if stats.per_token_s > 0 else "one token"
    proposed, accepted = stats.lookup_proposed, stats.lookup_accepted
    lookup = f", lookup {accepted} of {proposed} accepted" if proposed else ""
    return (
        f"[{stats.output_tokens} tokens, first after {stats.first_token_s * 1000:.0f} ms, {rate}, "
        f"prompt {stats.prompt_tokens} ({stats.cached_tokens} cached){lookup}]"
    )
