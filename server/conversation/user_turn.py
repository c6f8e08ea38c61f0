"""One turn of the person: its sound, its words, and how long a silence ends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.server.conversation.turns import TurnPolicy, eager_wait_s, end_wait_s

RATE = 16_000


@dataclass(slots=True, eq=False)
class UserSpeech:
    """One turn of the person, from the first sound to the last word understood."""

    number: int
    item: str  # its id in the history
    asr_id: str
    onset: int  # sample
    fed: int  # samples before this one went to the engine
    gathered: int = 0  # samples of a quiet turn
    confirmed: bool = False  # it is speech
    manual: bool = False  # begun and ended by a button
    quiet: bool = False  # sound that the client collects and then commits; it interrupts no reply
    beside: bool = False  # said during a reply that cannot be interrupted; answered after it
    failed: bool = False  # the engine could not transcribe it
    clip: bool = False  # sound that the client put into the conversation, not a turn
    settled: str = ""
    tail: str = ""
    silent: bool = False
    dismissed: bool = False  # remembered, not answered: the person said stop
    understood: bool = False  # its last word is known
    p_end: float | None = None  # the probability that `probed` is complete
    probe_id: str = ""
    probed: str = ""
    asked: bool = False  # its last words were asked for, before a reply on hold goes on
    held: bool = False  # it has put a reply on hold, and there is no verdict yet
    hold_ms: float = 0.0  # from its first sound to the hold
    onset_s: float = 0.0
    stopped_s: float = 0.0  # when its last sound was
    ended_s: float = 0.0  # when it was taken as over
    words_s: float = 0.0  # when its last word was known

    @property
    def text(self) -> str:
        """The transcript so far."""
        return (self.settled + self.tail).strip()

    def understand(self, settled: str, tail: str) -> bool:
        """Add settled words and replace the tail; return whether the transcript changed."""
        before = self.text
        self.settled, self.tail = self.settled + settled, tail
        return self.text != before

    def end_wait(self, policy: TurnPolicy, heard: int) -> float:
        """Return the seconds of silence that end the turn, at sample `heard`."""
        return end_wait_s(self._p_end, policy, self.text, (heard - self.onset) / RATE)

    def eager_wait(self, policy: TurnPolicy, heard: int) -> float:
        """Return the seconds of silence after which an answer may be prepared, at sample `heard`."""
        return eager_wait_s(self._p_end, policy, self.text, (heard - self.onset) / RATE)

    @property
    def _p_end(self) -> float | None:
        return self.p_end if self.probed == self.text else None
