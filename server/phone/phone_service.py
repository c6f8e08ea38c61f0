"""What all calls of a server share: the configuration, keys, passes, tools, and what follows after a call."""

from __future__ import annotations

import socket
from datetime import date

from voxlane.server.cell.seat import CellSeat
from voxlane.server.config import Config, PhoneKeys, socket_address, transfer_targets
from voxlane.server.errors import ConfigError, VoxlaneError
from voxlane.server.phone.admission import PhoneAdmission
from voxlane.server.phone.call_tools import CallTools, CustomerTool
from voxlane.server.phone.passes import NextSteps, Passes, SeenSignatures
from voxlane.server.phone.phone_keys import check_keys
from voxlane.server.phone.tool_file import read_tools
from voxlane.server.phone.tool_webhook import FAILED, ToolWebhook
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.sessions.offer import dated
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.store.notes import SharedNotes
from voxlane.server.tenants.accounts import Tenants
from voxlane.server.watching.metrics import Metrics


class PhoneService:
    """The telephone of one server."""

    def __init__(
        self,
        whole: Config,
        keys: PhoneKeys,
        registry: SessionRegistry,
        metrics: Metrics,
        tenants: Tenants,
        seat: CellSeat | None = None,
        notes: SharedNotes | None = None,
    ) -> None:
        check_keys(whole, keys, tenants)
        self.config = config = whole.phone
        self.registry = registry
        self.default_account = tenants.default  # of calls that show no API key
        self.next_steps = NextSteps(notes=notes, secret=b"" if seat is None else seat.secret)
        passes, seen = Passes(notes=notes), SeenSignatures(notes=notes)
        self.admission = PhoneAdmission(whole, keys, tenants, passes, self.next_steps, seen=seen)
        self.audiosocket = _listener(config.audiosocket, shared=seat is not None and seat.shared)
        self._customer_tools = read_tools(config.tools)
        self._tools = self._made_tools(transfers=True)
        self._tools_here = self._made_tools(transfers=False)
        self._metrics = metrics
        self._webhook = ToolWebhook(config.tools_url, keys.phone) if config.tools_url else None

    def _made_tools(self, *, transfers: bool) -> CallTools:
        config = self.config
        return CallTools(
            hang_up=config.hang_up,
            send_digits=config.send_digits,
            collect_digits=config.collect_digits,
            transfer=transfer_targets(config.transfer) if transfers else {},
            customer=self._customer_tools,
        )

    def tools(self, *, transfers: bool) -> CallTools:
        """Return the tools of a call."""
        return self._tools if transfers else self._tools_here

    @property
    def instructions(self) -> str:
        """Return the instructions for calls, "" if they are those of all conversations."""
        return dated(self.config.instructions, date.today())

    def began(self, facts: CallFacts) -> None:
        """Count a call."""
        self._metrics.calls.labels(facts.system).inc()

    def ended(self, error: VoxlaneError | None) -> None:
        """Count the end of a call."""
        self._metrics.calls_ended.labels("done" if error is None else error.code).inc()

    def caught(self) -> None:
        """Count an error of a call that nothing foresaw."""
        self._metrics.caught("phone")

    def transfer(self, facts: CallFacts, destination: str) -> None:
        """Have the telephone system connect the caller with a destination when the call is over."""
        self.next_steps.transfer(facts.call_id, destination, facts.called)

    def stay(self, facts: CallFacts) -> None:
        """Forget what was to follow after a call: the call goes on."""
        self.next_steps.forget(facts.call_id)

    async def ask(self, tool: CustomerTool, facts: CallFacts) -> str:
        """Return the output of a customer's tool."""
        return FAILED if self._webhook is None else await self._webhook.ask(tool, facts)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._webhook is not None:
            await self._webhook.aclose()


def _listener(address: str, *, shared: bool) -> socket.socket | None:
    """Return a socket that listens on phone.audiosocket, None where that is empty; raise ConfigError if it cannot.

    It is opened before the models are loaded: a port in use is told at once. Processes of a cell share it.
    """
    if not address:
        return None
    host, port = socket_address(address, "phone.audiosocket")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, reuse_port=shared)
    except OSError as error:
        raise ConfigError(f"phone.audiosocket: {address}: {error.strerror or error}") from error
