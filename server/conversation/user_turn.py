"""What the person is saying right now, and how long a silence would end it. Pure; what follows is session.py's."""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.server.conversation.turns import TurnPolicy, eager_wait_s, end_wait_s

RATE = 16_000


@dataclass(slots=True, eq=False)
class UserSpeech:
    """One turn of the person, from the first sound to the last word understood."""

    number: int
    item: str  # the id under which it is remembered
    asr_id: str
    onset: int  # sample
    fed: int  # samples up to here went to the engine
    gathered: int = 0  # samples of a quiet one
    confirmed: bool = False  # it is speech
    manual: bool = False  # begun by a button, and ended by it
    quiet: bool = False  # what the client gathers until it says that it is a turn: nobody is interrupted
    beside: bool = False  # said while a reply was spoken that nobody may interrupt: answered after it
    failed: bool = False  # the engine could not listen to it
    clip: bool = False  # sound that the client put into the conversation, not a turn
    settled: str = ""
    tail: str = ""
    silent: bool = False
    dismissed: bool = False  # remembered, not answered: the person said stop
    understood: bool = False  # its last word is known
    p_end: float | None = None  # how complete `probed` sounds
    probe_id: str = ""
    probed: str = ""
    asked: bool = False  # for its last words, before a reply on hold goes on
    held: bool = False  # it has put a reply on hold, and the verdict is out
    hold_ms: float = 0.0  # from its first sound to the hold
    onset_s: float = 0.0
    stopped_s: float = 0.0  # when its last sound was,
    ended_s: float = 0.0  # when that was taken for the end of the turn,
    words_s: float = 0.0  # and when its last word was known

    @property
    def text(self) -> str:
        """All that was understood so far."""
        return (self.settled + self.tail).strip()

    def understand(self, settled: str, tail: str) -> bool:
        """Take more words, and another guess at those after them; return whether that changes what was said."""
        before = self.text
        self.settled, self.tail = self.settled + settled, tail
        return self.text != before

    def end_wait(self, policy: TurnPolicy, heard: int) -> float:
        """Return the silence that ends the turn, at a given sample."""
        return end_wait_s(self._p_end, policy, self.text, (heard - self.onset) / RATE)

    def eager_wait(self, policy: TurnPolicy, heard: int) -> float:
        """Return the silence after which an answer may be prepared."""
        return eager_wait_s(self._p_end, policy, self.text, (heard - self.onset) / RATE)

    @property
    def _p_end(self) -> float | None:
        return self.p_end if self.probed == self.text else None
