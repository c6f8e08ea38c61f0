"""Every Prometheus metric of the server, declared here and nowhere else. Base units; no label comes from user data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from voxlane.engine.api import Finished, FinishReason, StepStats
from voxlane.server.conversation.server_events import BargeIn, Fault, Latency, ServerEvent, TurnDone
from voxlane.server.conversation.values import TurnEnd
from voxlane.server.engine_client.engine_client import LossCause, Observer, State
from voxlane.server.errors import QuotaReached, TenantFull

_LATENCY_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)
_SHORT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)

REFUSAL_REASONS = (
    "steps", "blocks", "loop", "first_sound", "sessions", "sessions_per_address", "draining", "no_engine",
)  # fmt: skip
"""Why conversations are refused before they begin: the measured values of room/, then the limits and states."""

CaughtPart = Literal["http", "connection", "conversation", "phone", "webrtc_call", "webrtc_offer", "keeper"]
"""The parts of the server that catch every error, so that others go on."""


class SharedMetrics:
    """The metrics of one process of a cell, in files that every process of the cell sums up (multiprocess mode).

    A process has its files by its name, not by its number in the system: one that is started again goes on counting
    where the one before has ended.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def use(self) -> None:
        """Make the metrics that are declared from now on shared ones."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._folder)
        values.ValueClass = values.MultiProcessValue(lambda: self._name)  # type: ignore[no-untyped-call]

    def registry(self) -> CollectorRegistry:
        """Return a registry with the sums of all processes."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        return registry

    def forget_gauges(self) -> None:
        """Forget what the process, which has ended, had open; what it has counted stays."""
        mark_process_dead(self._name, str(self._folder))  # type: ignore[no-untyped-call]


class _OfTenant(Collector):
    """A registry's metrics without those of other tenants."""

    def __init__(self, registry: CollectorRegistry, tenant: str) -> None:
        self._registry = registry
        self._tenant = tenant

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [one for one in metric.samples if one.labels.get("tenant", self._tenant) == self._tenant]
            yield metric


class RequestMetrics(Observer):
    """Counts the requests of a process whose engine another process runs and counts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def finished(self, message: Finished) -> None:
        """Count a request's end and its costs."""
        self._metrics.finished(message)


class Metrics(Observer):
    """One server's metrics, in their own registry so that a process can hold two servers."""

    def __init__(self, shared: SharedMetrics | None = None, *, has_engine: bool = True, has_room: bool = True) -> None:
        """Declare all metrics; those of a cell's process are `shared`.

        A process without an engine of its own leaves the engine's state to the one that has it, one without
        conversations the room for them.
        """
        self._shared = shared
        if shared is not None:
            shared.use()
        registry = self.registry = CollectorRegistry()
        self._declare_requests(registry)
        self._declare_tenants(registry)
        self._declare_engine(registry)
        self._declare_voice(registry)
        self._declare_watching(registry)
        if has_room:
            self._declare_room(registry)
        # Told the seconds to the first sound of each turn, and its conversation.
        self.on_first_sound: list[Callable[[float, str], None]] = []
        # Create all series now: one that appears with its first event cannot show that there were none before.
        for reason in get_args(FinishReason):
            self.finished_requests.labels(reason)
        for kind in ("heard", "spoken"):
            self.audio.labels(kind)
        for request_state in ("running", "waiting", "paused"):
            self.engine_requests.labels(request_state)
        for phase in ("schedule", "move", "forward", "sample"):
            self.phases.labels(phase)
        for block_state in ("free", "cached", "used"):
            self.kv_blocks.labels(block_state)
        for cause in get_args(LossCause):
            self.engine_restarts.labels(cause)
        for part in get_args(CaughtPart):
            self.caught_errors.labels(part)
        for outcome in ("written", "missing", "other_owner", "failed"):
            self.store_writes.labels(outcome)
        for outcome in ("found", "unknown", "failed"):
            self.store_claims.labels(outcome)
        for phase in ("prefill", "decode"):
            self.step_tokens.labels(phase)
        self.lane_wait.labels("critical")
        if has_engine:
            self.state_changed("starting")

    def caught(self, part: CaughtPart, times: int = 1) -> None:
        """Count an error that nothing foresaw."""
        self.caught_errors.labels(part).inc(times)

    def _declare_requests(self, registry: CollectorRegistry) -> None:
        self.http_requests = Counter(
            "voxlane_http_requests_total", "HTTP requests answered.", ["route", "status"], registry=registry
        )
        self.open_requests = Gauge(
            "voxlane_open_requests", "HTTP requests in progress.", registry=registry, multiprocess_mode="livesum"
        )
        self.disconnects = Counter(
            "voxlane_client_disconnects_total", "Clients that left before their answer was complete.", registry=registry
        )
        self.finished_requests = Counter(
            "voxlane_finished_requests_total",
            "Requests the engine has ended, by reason.",
            ["reason"],
            registry=registry,
        )
        self.tokens = Counter("voxlane_tokens_total", "Tokens of ended requests.", ["kind"], registry=registry)
        self.queue = Histogram(
            "voxlane_queue_seconds", "Wait before a request's first step.", buckets=_LATENCY_SECONDS, registry=registry
        )
        self.first_token = Histogram(
            "voxlane_first_token_seconds", "Arrival to first token.", buckets=_LATENCY_SECONDS, registry=registry
        )
        self.per_token = Histogram(
            "voxlane_output_token_seconds", "Time per token after the first.", buckets=_SHORT_SECONDS, registry=registry
        )
        self.audio = Counter(
            "voxlane_audio_seconds_total",
            "Audio heard by the recogniser or made by the voice.",
            ["kind"],
            registry=registry,
        )
        self.first_audio = Histogram(
            "voxlane_speech_first_audio_seconds",
            "Submission of a speech request to its first samples.",
            buckets=_LATENCY_SECONDS,
            registry=registry,
        )
        self.request_preemptions = Counter(
            "voxlane_preemptions_total", "Times a request was preempted.", registry=registry
        )

    def _declare_tenants(self, registry: CollectorRegistry) -> None:
        # The names of tenants are the operator's, and there are limits.KEYS of them at most.
        self.tenant_requests = Counter(
            "voxlane_tenant_requests_total", "HTTP requests with a tenant's key.", ["tenant"], registry=registry
        )
        self.tenant_refusals = Counter(
            "voxlane_tenant_refusals_total",
            "Requests and conversations that a limit of their tenant has refused or ended.",
            ["tenant", "limit"],
            registry=registry,
        )
        self.tenant_conversations = Gauge(
            "voxlane_tenant_conversations",
            "Conversations of a tenant, parked ones too.",
            ["tenant"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.tenant_audio = Counter(
            "voxlane_tenant_audio_seconds_total",
            "Sound that counts for a tenant: microphones, recordings, speech over HTTP.",
            ["tenant"],
            registry=registry,
        )

    def tenant_limited(self, tenant: str, check: Callable[[], None]) -> None:
        """Run a check of a tenant's limits, and count its refusal."""
        try:
            check()
        except (QuotaReached, TenantFull) as error:
            self.tenant_refusals.labels(tenant, error.detail).inc()
            raise

    def _declare_engine(self, registry: CollectorRegistry) -> None:
        self.engine_state = Gauge(
            "voxlane_engine_state",
            "1 for the state the engine is in.",
            ["state"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.engine_starts = Counter("voxlane_engine_starts_total", "Times the engine became ready.", registry=registry)
        self.engine_restarts = Counter(
            "voxlane_engine_restarts_total",
            "Times the engine had to be started again, by cause: it died, its steps hung, it failed to load, or no"
            " process could be started.",
            ["cause"],
            registry=registry,
        )
        self.engine_restart = Gauge(
            "voxlane_engine_restart_seconds",
            "Loss of an engine to the readiness of the next, for the last restart; 0 before the first.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.steps = Counter("voxlane_engine_steps_total", "Engine steps.", registry=registry)
        self.step_requests = Counter(
            "voxlane_engine_step_requests_total",
            "Requests in those steps; divided by voxlane_engine_steps_total it is the mean batch.",
            registry=registry,
        )
        self.busy = Counter("voxlane_engine_busy_seconds_total", "Time spent inside steps.", registry=registry)
        self.phases = Counter(
            "voxlane_engine_phase_seconds_total",
            "Time spent inside steps, by phase: planning, block moves, the model, sampling.",
            ["phase"],
            registry=registry,
        )
        self.lookup_proposed = Counter(
            "voxlane_lookup_proposed_tokens_total", "Tokens guessed by prompt lookup.", registry=registry
        )
        self.lookup_accepted = Counter(
            "voxlane_lookup_accepted_tokens_total", "Guessed tokens that were right.", registry=registry
        )
        self.step = Histogram(
            "voxlane_engine_step_seconds",
            "Longest step of each reporting interval.",
            buckets=_SHORT_SECONDS,
            registry=registry,
        )
        self.step_tokens = Counter("voxlane_engine_step_tokens_total", "Tokens computed.", ["phase"], registry=registry)
        self.engine_requests = Gauge(
            "voxlane_engine_requests",
            "Requests inside the engine.",
            ["state"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.kv_blocks = Gauge(
            "voxlane_kv_blocks", "KV cache blocks.", ["state"], registry=registry, multiprocess_mode="livesum"
        )
        self.lane_wait = Histogram(
            "voxlane_lane_wait_seconds",
            "Longest wait of a critical request for its first step, per reporting interval with one.",
            ["priority"],
            buckets=_SHORT_SECONDS,
            registry=registry,
        )
        self.processes = Gauge(
            "voxlane_processes",
            "Server processes that accept connections.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.process_restarts = Counter(
            "voxlane_process_restarts_total", "Times a server process had to be started again.", registry=registry
        )
        self.caught_errors = Counter(
            "voxlane_caught_errors_total",
            "Errors that nothing foresaw, by the part of the server that caught them; the log has the traceback.",
            ["part"],
            registry=registry,
        )
        self.loop_lag = Histogram(
            "voxlane_loop_lag_seconds",
            "How late the event loop runs a timer.",
            buckets=_SHORT_SECONDS,
            registry=registry,
        )

    def _declare_voice(self, registry: CollectorRegistry) -> None:
        self.sessions = Gauge(
            "voxlane_sessions", "Conversations, parked ones included.", registry=registry, multiprocess_mode="livesum"
        )
        self.calls = Counter(
            "voxlane_calls_total", "Telephone calls that began, by telephone system.", ["system"], registry=registry
        )
        self.calls_ended = Counter(
            "voxlane_calls_ended_total", "Telephone calls that ended, by reason.", ["reason"], registry=registry
        )
        self.sockets_closed = Counter(
            "voxlane_sockets_closed_total",
            "WebSockets closed or refused, by close code or HTTP status; other: a code of the client's own.",
            ["code"],
            registry=registry,
        )
        self.store_writes = Counter(
            "voxlane_store_writes_total",
            "Writes of conversations to the store, by outcome: written, missing, other_owner or failed.",
            ["outcome"],
            registry=registry,
        )
        self.store_claims = Counter(
            "voxlane_store_claims_total",
            "Conversations asked for in the store: found, unknown, or failed because the store did not answer.",
            ["outcome"],
            registry=registry,
        )
        self.store_seconds = Histogram(
            "voxlane_store_write_seconds",
            "Time of a write to the store; a client's message waits for it.",
            buckets=_SHORT_SECONDS,
            registry=registry,
        )
        self.handed_over = Counter(
            "voxlane_sessions_handed_over_total",
            "Conversations that a drain has left to the next process.",
            registry=registry,
        )
        self.resumed = Counter("voxlane_sessions_resumed_total", "Conversations brought back.", registry=registry)
        self.turns = Counter("voxlane_turns_total", "Turns, by how they ended.", ["end"], registry=registry)
        self.barge_ins = Counter(
            "voxlane_barge_ins_total",
            "Replies lowered or put on hold by a voice, by verdict.",
            ["verdict"],
            registry=registry,
        )
        self.false_interruptions = Counter(
            "voxlane_false_interruptions_total",
            "Replies lowered or put on hold by what was no interruption.",
            registry=registry,
        )
        self.barge_in_stop = Histogram(
            "voxlane_barge_in_stop_seconds",
            "First sound of a voice until the reply was lowered or held, in audio time.",
            buckets=_SHORT_SECONDS,
            registry=registry,
        )
        self.barge_in_verdict = Histogram(
            "voxlane_barge_in_verdict_seconds",
            "First sound of a voice to the verdict on the reply that it cuts into.",
            buckets=_LATENCY_SECONDS,
            registry=registry,
        )
        self.backchannel = Histogram(
            "voxlane_backchannel_seconds",
            "How long a voice that took no floor lowered the reply (ducked) or stopped it (muted); 0 if it did not.",
            ["reply"],
            buckets=_LATENCY_SECONDS,
            registry=registry,
        )
        self.reply_first_audio = Histogram(
            "voxlane_reply_first_audio_seconds",
            "Last sound of a person to the first audio frame sent.",
            buckets=_LATENCY_SECONDS,
            registry=registry,
        )
        self.turn_end_delay = Histogram(
            "voxlane_turn_end_delay_seconds",
            "Last sound of a person to the decision that their turn is over.",
            buckets=_LATENCY_SECONDS,
            registry=registry,
        )
        self.audio_underruns = Counter(
            "voxlane_audio_underruns_total", "Times a client's player ran dry within a reply.", registry=registry
        )
        self.session_faults = Counter(
            "voxlane_session_faults_total", "Faults that conversations were told of.", registry=registry
        )
        for end in get_args(TurnEnd):
            self.turns.labels(end)
        for verdict in ("commit", "release"):
            self.barge_ins.labels(verdict)
        for how in ("ducked", "muted"):
            self.backchannel.labels(how)

    def _declare_watching(self, registry: CollectorRegistry) -> None:
        self.recordings_stopped = Counter(
            "voxlane_recordings_stopped_total",
            "Recordings that stopped before their conversation did, by the system's error.",
            ["reason"],
            registry=registry,
        )
        self.recordings_bytes = Gauge(
            "voxlane_recordings_bytes",
            "Bytes of recordings and transcripts at the last clean-up.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.webhooks = Counter(
            "voxlane_webhooks_total", "Messages about ended conversations, by result.", ["result"], registry=registry
        )
        for result in ("delivered", "given_up"):
            self.webhooks.labels(result)

    def _declare_room(self, registry: CollectorRegistry) -> None:
        self.room_percent = Gauge(
            "voxlane_room_percent",
            "Measured room for conversations: 100 when idle, 0 when no more may begin.",
            registry=registry,
            multiprocess_mode="livemin",  # each process tells the room of the cell, as it sees it
        )
        self.room_more = Gauge(
            "voxlane_room_conversations",
            "How many more conversations may begin, as estimated.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.room_use = Gauge(
            "voxlane_room_use",
            "Each measured value, divided by that at which the server is full.",
            ["measure"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.refusals = Counter(
            "voxlane_refusals_total",
            "Conversations and requests refused for want of room, by reason: a measured value, or a limit.",
            ["reason"],
            registry=registry,
        )
        for measure in ("steps", "blocks", "loop", "first_sound"):
            self.room_use.labels(measure)
        for reason in REFUSAL_REASONS:
            self.refusals.labels(reason)

    def count(self, event: ServerEvent, session: str = "") -> None:
        """Count an event that is sent to the client of a conversation."""
        match event:
            case TurnDone(how=how):
                self.turns.labels(how).inc()
            case BargeIn(committed=committed):
                self.barge_ins.labels("commit" if committed else "release").inc()
                self.false_interruptions.inc(not committed)
                self.barge_in_stop.observe(event.hold_ms / 1e3)
                self.barge_in_verdict.observe(event.verdict_ms / 1e3)
                if not committed:
                    self.backchannel.labels("ducked").observe(event.ducked_ms / 1e3)
                    self.backchannel.labels("muted").observe(event.muted_ms / 1e3)
            case Latency():
                for histogram, value in (
                    (self.reply_first_audio, event.first_frame_ms),
                    (self.turn_end_delay, event.turn_end_ms),
                ):
                    if value >= 0:
                        histogram.observe(value / 1e3)
                if event.first_frame_ms >= 0:
                    for notice in self.on_first_sound:
                        # Without the silence that ends a turn: the client chooses that.
                        notice((event.first_frame_ms - max(0.0, event.turn_end_ms)) / 1e3, session)
            case Fault():
                self.session_faults.inc()
            case _:
                pass

    def text(self, tenant: str | None = None) -> bytes:
        """Return the metrics in Prometheus' text format: all, or without those of other tenants than this one."""
        registry = self.registry if self._shared is None else self._shared.registry()
        if tenant is not None:
            shown, registry = _OfTenant(registry, tenant), CollectorRegistry()
            registry.register(shown)
        return generate_latest(registry)

    def state_changed(self, state: State) -> None:
        """Set the gauge of each engine state."""
        for other in get_args(State):
            self.engine_state.labels(other).set(other == state)
        if state == "ready":
            self.engine_starts.inc()

    def lost(self, cause: LossCause) -> None:
        """Count a restart by its cause."""
        self.engine_restarts.labels(cause).inc()

    def back(self, seconds: float) -> None:
        """Keep how long a restart took."""
        self.engine_restart.set(seconds)

    def finished(self, message: Finished) -> None:
        """Count a request's end and its costs."""
        stats = message.stats
        self.finished_requests.labels(message.reason).inc()
        self.tokens.labels("prompt").inc(stats.prompt_tokens)
        self.tokens.labels("cached").inc(stats.cached_tokens)
        self.tokens.labels("output").inc(stats.output_tokens)
        self.request_preemptions.inc(stats.preemptions)
        self.queue.observe(stats.queue_s)
        if stats.output_tokens:
            self.first_token.observe(stats.first_token_s)
        if stats.output_tokens > 1:
            self.per_token.observe(stats.per_token_s)

    def stepped(self, message: StepStats) -> None:
        """Add the engine's report of its last second."""
        self.steps.inc(message.steps)
        self.step_requests.inc(message.rows)
        self.busy.inc(message.busy_s)
        self.phases.labels("schedule").inc(message.schedule_s)
        self.phases.labels("move").inc(message.move_s)
        self.phases.labels("forward").inc(message.forward_s)
        self.phases.labels("sample").inc(message.sample_s)
        self.lookup_proposed.inc(message.lookup_proposed)
        self.lookup_accepted.inc(message.lookup_accepted)
        if message.steps:
            self.step.observe(message.longest_step_s)
        self.step_tokens.labels("prefill").inc(message.prefill_tokens)
        self.step_tokens.labels("decode").inc(message.decode_tokens)
        self.engine_requests.labels("running").set(message.running)
        self.engine_requests.labels("waiting").set(message.waiting)
        self.engine_requests.labels("paused").set(message.paused)
        self.kv_blocks.labels("free").set(message.blocks_free)
        self.kv_blocks.labels("cached").set(message.blocks_cached)
        self.kv_blocks.labels("used").set(message.blocks_used)
        if message.lane_wait_s > 0:
            self.lane_wait.labels("critical").observe(message.lane_wait_s)
