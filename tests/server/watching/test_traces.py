"""Spans of real conversations: in memory, and over OTLP to a receiver of our own."""

from __future__ import annotations

import builtins
import gzip
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from peer import MANUAL, Peer, eventually, speech

from voxlane.codecs.extras import install_command
from voxlane.server.config import Config, TracesConfig
from voxlane.server.errors import ConfigError
from voxlane.server.watching import traces
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.traces import Traces
from voxlane.server.watching.watch_service import WatchService

SECRET_WORDS = "canary zebra"


@dataclass
class Collector:
    """Takes OTLP over HTTP, and keeps what came."""

    port: int = 0
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: int = 200

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            found.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            self.send_response(found.answers)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def spans_by_name(spans: tuple[ReadableSpan, ...]) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return found


async def test_a_span_for_each_conversation_turn_and_stage(serving: Any) -> None:
    async with serving() as running:
        exporter = InMemorySpanExporter()
        running.service.watch.traces = Traces("test", exporter)
        peer = await Peer.open(running.url, MANUAL)
        await peer.send("start")
        await peer.send("audio", speech(SECRET_WORDS))
        await peer.send("end")
        await peer.until("turn_done")
        assert (await peer.say(SECRET_WORDS))[-1][3] == "done"
        await peer.bye()
        await running.service.watch.traces.aclose()
        found = spans_by_name(exporter.get_finished_spans())
        running.service.watch.traces = None
        (conversation,) = found["conversation"]
        turns = found["turn"]
        assert len(turns) == 2
        assert conversation.attributes is not None
        assert conversation.attributes["voxlane.dialect"] == "native"
        assert conversation.attributes["voxlane.turns"] == 2
        assert conversation.attributes["voxlane.end"] == "done"
        for turn in turns:
            assert turn.parent is not None
            assert conversation.context is not None
            assert turn.parent.span_id == conversation.context.span_id
            assert turn.attributes is not None
            assert turn.attributes["voxlane.words"] == 2
            stages = [name for name, spans in found.items() for span in spans if span.parent == turn.context]
            assert {"turn_end", "words", "first_token", "first_sample", "first_frame", "playing"} <= set(stages)
        for span in exporter.get_finished_spans():
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
            assert "canary" not in span.to_json()
            assert "127.0.0.1" not in span.to_json()


async def test_they_arrive_over_otlp_as_the_environment_says(
    serving: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=voice")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "our-assistant")
    async with serving(parts={"traces": TracesConfig(on=True)}) as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.say(SECRET_WORDS)
        await peer.bye()
    assert {span.name for span in collector.spans()} >= {"conversation", "turn", "first_token"}
    assert collector.headers[0]["path"] == "/v1/traces"
    assert collector.headers[0]["x-team"] == "voice"
    resource = {one.key: one.value.string_value for one in collector.requests[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "our-assistant"
    assert resource["deployment.environment"] == "test"
    assert all(b"canary" not in request.SerializeToString() for request in collector.requests)


async def test_a_collector_that_is_gone_does_not_hold_up_the_end(
    serving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(traces, "FLUSH_SECONDS", 0.05)
    async with serving(parts={"traces": TracesConfig(on=True)}) as running:
        peer = await Peer.open(running.url, MANUAL)
        assert (await peer.say("hello"))[-1][3] == "done"
        await peer.bye()
    # Its thread gives up by itself; the next test must not find it.
    ours = ("traces flush", "OtelBatchSpanRecordProcessor")
    await eventually(lambda: not any(thread.name in ours for thread in threading.enumerate()))


def test_by_default_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys\n"
        "from voxlane.server.config import Config\n"
        "from voxlane.server.watching.metrics import Metrics\n"
        "from voxlane.server.watching.watch_service import WatchService\n"
        "assert WatchService(Config(), Metrics(), 'test').traces is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_extra_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=re.escape(install_command("otel"))):
        WatchService(Config(traces=TracesConfig(on=True)), Metrics(), "test")


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_what_the_extra_cannot_do_is_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        Traces("test")


async def test_the_standard_switch_turns_them_off(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    async with serving(parts={"traces": TracesConfig(on=True)}) as running:
        peer = await Peer.open(running.url, MANUAL)
        assert (await peer.say("hello"))[-1][3] == "done"
        await peer.bye()
