"""Rules for random commands to any voice in a simulation, the same for all voices."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from simulation import Simulation

from voxlane.engine.api import EndInput
from voxlane.engine.schedule.request import RequestState

SESSIONS = st.sampled_from(["s", "t"])


class VoiceLoop(RuleBasedStateMachine):
    """Ends inputs, interrupts sessions and audits the blocks; subclasses begin requests and check their ends."""

    simulation: Simulation
    open: set[str]  # ids of requests with open input

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end_input(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.open.discard(name)
        self.simulation.send(EndInput(name), EndInput(name))

    @rule(session=SESSIONS)
    def interrupt(self, session):
        self.simulation.send(self.simulation.pause_session(session))
        live = self.simulation.scheduler.requests.values()
        assert all(request.state is RequestState.PAUSED for request in live if request.session == session)

    @invariant()
    def books_balance(self):
        if hasattr(self, "simulation"):
            self.simulation.scheduler.check()
