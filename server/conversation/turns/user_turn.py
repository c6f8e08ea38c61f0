"""One turn of the person: its sound, its words, and how long a silence ends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from voxlane.server.conversation.turns.end_of_turn import PauseEvidence
from voxlane.server.conversation.turns.overlap import Overlap

RATE = 16_000

TAIL_S = 0.2
"""Silence behind what a person said that a speech-to-speech model hears."""

Content = str | tuple[int, int]
"""What a reply answers: words, or the number of a turn and how many bytes of its sound."""


@dataclass(slots=True, eq=False)
class UserSpeech:
    """One turn of the person, from the first sound to the last word understood."""

    number: int
    item: str  # its id in the history
    asr_id: str
    onset: int  # sample
    fed: int  # samples before this one went to the engine
    first: int = 0  # the first sample that went to the engine
    gathered: int = 0  # samples of a quiet turn
    confirmed: bool = False  # it is speech
    manual: bool = False  # begun and ended by a button
    quiet: bool = False  # sound that the client collects and then commits; it interrupts no reply
    beside: bool = False  # said during a reply that cannot be interrupted; answered after it
    failed: bool = False  # the engine could not transcribe it
    clip: bool = False  # sound that the client put into the conversation, not a turn
    covered: int = 0  # sample up to which the words are those of the sound
    settled: str = ""
    tail: str = ""
    silent: bool = False
    dismissed: bool = False  # remembered, not answered: the person said stop
    understood: bool = False  # its last word is known
    p_end: float | None = None  # the probability that `probed` is complete
    probe_id: str = ""
    probed: str = ""
    asked: bool = False  # its last words were asked for, before a reply on hold goes on
    faint: bool = False  # the voice was very soft
    held: bool = False  # it cuts into a reply, and there is no verdict yet
    overlap: Overlap | None = None  # what it has done to that reply so far
    ended_words: str | None = None  # the words that a silence ended it on; None: it was ended otherwise
    p_sound: float | None = None  # the probability, when it was ended, that the voice sounded finished
    pauses: int = 0  # pauses after which the person went on
    longest_pause_s: float = 0.0
    answer_at_s: float = 0.0  # not answered before: its last words say that it may go on
    stopped_s: float = 0.0  # when its last sound was
    ended_s: float = 0.0  # when it was taken as over
    words_s: float = 0.0  # when its last word was known
    sound: bytearray = field(default_factory=bytearray)  # all of it, if a speech-to-speech model can hear it
    too_long: bool = False  # for such a model: there is no sound
    voiced_bytes: int = 0  # of the sound, up to the last voice when an answer was thought of
    said_bytes: int = 0  # the same with a little silence behind it; 0: its words are answered

    @property
    def content(self) -> Content:
        """What a reply answers: so much of the sound, which only grows, or else the words."""
        return (self.number, self.voiced_bytes) if self.said_bytes else self.text

    @property
    def said(self) -> bytes:
        """The sound that a reply answers, a copy."""
        return bytes(memoryview(self.sound)[: self.said_bytes])

    @property
    def text(self) -> str:
        """The transcript so far."""
        return (self.settled + self.tail).strip()

    def keep(self, sound: bytes, most: int) -> None:
        """Keep sound for a speech-to-speech model, up to `most` bytes; of a longer turn keep none."""
        self.too_long = self.too_long or len(self.sound) + len(sound) > most
        if self.too_long:
            self.sound.clear()
        else:
            self.sound += sound

    def note_said(self, quiet: int) -> None:
        """Note that a reply answers the sound that is kept, of which so many samples at the end are silence.

        More silence behind the same voice changes nothing.
        """
        voiced = max(0, len(self.sound) - 2 * quiet)
        if voiced != self.voiced_bytes or not self.said_bytes:
            self.voiced_bytes = voiced
            self.said_bytes = min(len(self.sound), voiced + 2 * int(TAIL_S * RATE))

    @property
    def remembered_sound(self) -> bytes:
        """What the history keeps of the sound: nothing of a turn that had no words."""
        return self.said if self.text or self.clip else b""

    def understand(self, settled: str, tail: str) -> bool:
        """Add settled words and replace the tail; return whether the transcript changed."""
        before = self.text
        self.settled, self.tail = self.settled + settled, tail
        return self.text != before

    def evidence(self, paused_at: int, heard: int, p_sound: float | None) -> PauseEvidence:
        """Return what is known at sample `heard`, in a pause that began at `paused_at`."""
        fresh = self.covered >= paused_at - int(_NEARLY_S * RATE)
        p_words = self.p_end if self.probed == self.text else None
        turn_s = (heard - self.onset) / RATE
        return PauseEvidence(self.text, fresh, p_words, p_sound, turn_s, self.pauses, self.longest_pause_s)

    def went_on(self, pause_s: float) -> None:
        """Note that the person went on after a pause; short ones are part of speaking."""
        if pause_s >= _PAUSE_S:
            self.pauses += 1
            self.longest_pause_s = max(self.longest_pause_s, pause_s)


_PAUSE_S = 0.35
_NEARLY_S = 0.05
"""Words cover the sound before a pause if at most so much of it came after them: two detectors differ by that."""
