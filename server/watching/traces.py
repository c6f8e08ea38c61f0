"""OpenTelemetry traces: a span for each conversation, in it one for each turn, in it one for each stage.

The spans of a turn are made when the turn is over. Their attributes hold numbers and names of ours, no content and no
address. OpenTelemetry's own environment variables say where the spans go; its threads send them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

from voxlane.codecs.extras import install_command
from voxlane.server.errors import ConfigError
from voxlane.server.watching.turn_account import MS, TurnRecord
from voxlane.server.watching.watched_call import WatchedCall

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

MISSING = f"traces.on needs OpenTelemetry: {install_command('otel')}"

FLUSH_SECONDS = 2.0
"""Time at shutdown for spans that wait: a collector that is gone must not hold up the end."""


class Traces:
    """Makes spans and hands them to OpenTelemetry."""

    def __init__(self, version: str, exporter: SpanExporter | None = None) -> None:
        self._provider = _provider(version, exporter)
        self._tracer = None if self._provider is None else self._provider.get_tracer("voxlane", version)

    def conversation(self, call: WatchedCall) -> ConversationTrace | None:
        """Begin the span of a conversation; None if OTEL_TRACES_EXPORTER is none."""
        if self._tracer is None:
            return None
        from opentelemetry.trace import SpanKind

        attributes = {"voxlane.session": call.session, "voxlane.dialect": call.dialect}
        optional = {
            "voxlane.tenant": call.tenant,
            "gen_ai.request.model": call.model,
        }
        attributes |= {name: value for name, value in optional.items() if value}
        began_ns = int(call.began_s * 1e9)
        span = self._tracer.start_span("conversation", kind=SpanKind.SERVER, attributes=attributes, start_time=began_ns)
        return ConversationTrace(self, span, call)

    def turn(self, parent: Span, call: WatchedCall, turn: TurnRecord) -> None:
        """Make the spans of a turn."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        assert self._tracer is not None
        span = self._tracer.start_span(
            "turn", set_span_in_context(parent), attributes=_attributes(call, turn), start_time=turn.began_ns
        )
        if turn.end == "failed":
            span.set_status(Status(StatusCode.ERROR))
        within = set_span_in_context(span)
        for name, from_ns, to_ns in segments(turn):
            self._tracer.start_span(name, within, start_time=from_ns).end(end_time=to_ns)
        span.end(end_time=turn.ended_ns)

    async def aclose(self) -> None:
        """Send the spans that wait, for at most FLUSH_SECONDS."""
        if self._provider is None:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        provider = self._provider

        def shut_down() -> None:
            provider.force_flush(int(FLUSH_SECONDS * 1e3))
            provider.shutdown()
            loop.call_soon_threadsafe(done.set)

        # A daemon: the process ends even if a collector takes the connection and never answers.
        threading.Thread(target=shut_down, name="traces flush", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            return


class ConversationTrace:
    """The open span of one conversation."""

    def __init__(self, traces: Traces, span: Span, call: WatchedCall) -> None:
        self._traces = traces
        self._span = span
        self._call = call

    def turn(self, turn: TurnRecord) -> None:
        """Add a turn."""
        self._traces.turn(self._span, self._call, turn)

    def close(self, reason: str, turns: int, interruptions: int) -> None:
        """End the span of the conversation."""
        if self._call.system:  # known only after the conversation has begun
            self._span.set_attribute("voxlane.phone_system", self._call.system)
        self._span.set_attributes(
            {"voxlane.end": reason, "voxlane.turns": turns, "voxlane.interruptions": interruptions}
        )
        self._span.end()


def segments(turn: TurnRecord) -> list[tuple[str, int, int]]:
    """Return the child spans of a turn: its speech, the stages one after the other as in the latency bar, its playing.

    Stages are in the order in which they happened: a first token may come before the last words.
    """
    if turn.last_sound_ns is None:
        return []
    found = [("speech", turn.began_ns, turn.last_sound_ns)] if turn.last_sound_ns > turn.began_ns else []
    at_ns = turn.last_sound_ns
    for name, ms in sorted(turn.stages, key=lambda stage: stage[1]):
        next_ns = turn.last_sound_ns + int(ms * MS)
        found.append((name, at_ns, next_ns))
        at_ns = next_ns
    if any(name == "first_frame" for name, _ in turn.stages):
        found.append(("playing", at_ns, max(at_ns, turn.ended_ns)))
    return found


def _attributes(call: WatchedCall, turn: TurnRecord) -> dict[str, str | int | float]:
    stages = {f"voxlane.{name}_ms": round(ms, 1) for name, ms in turn.stages}
    return {
        "voxlane.session": call.session,
        "voxlane.dialect": call.dialect,
        **({"voxlane.tenant": call.tenant} if call.tenant else {}),
        "voxlane.turn": turn.number,
        "voxlane.end": turn.end,
        "voxlane.words": turn.words,
        "voxlane.reply_words": turn.reply_words,
        "voxlane.tools": turn.tools,
        "voxlane.barge_ins": turn.barge_ins,
        "gen_ai.usage.input_tokens": turn.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": turn.cached_tokens,
        "gen_ai.usage.output_tokens": turn.output_tokens,
        **stages,
    }


def _provider(version: str, exporter: SpanExporter | None) -> TracerProvider | None:
    """Return a provider of our own: the process-wide one is left to programs that embed the server."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(MISSING) from error
    exporter = exporter or _exporter()
    if exporter is None:
        return None
    resource = Resource.create({"service.name": "voxlane", "service.version": version})
    named = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over our name
    if not str(named.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(named)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter() -> SpanExporter | None:
    """Return what OTEL_TRACES_EXPORTER names: otlp, console or none."""
    match os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp":
        case "none":
            return None
        case "console":
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            return ConsoleSpanExporter()
        case "otlp":
            return _otlp()
        case _:
            raise ConfigError("OTEL_TRACES_EXPORTER must be otlp, console or none")


def _otlp() -> SpanExporter:
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((os.environ[name] for name in names if os.environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise ConfigError("OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf: the extra otel has no other")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(MISSING) from error
    return OTLPSpanExporter()
