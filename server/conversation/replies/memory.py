"""Facts that a person stated about themselves, kept in their own words when the model is no longer shown those turns.

Sentences that state something ("My name is Peter.", "I live in Berlin.", "Remember that …") are kept as they were said,
the newest for each subject. Questions, wishes and moods are not kept. Only the wording decides, so the same talk always
leaves the same facts. English only. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from voxlane.server.conversation.replies.clauses import sentences
from voxlane.server.conversation.replies.saved import SavedFact

MEMORY_CHARACTERS = 480
"""Characters of all facts together, some 120 tokens: they are part of every prompt."""

FACT_CHARACTERS = 160
"""The longest sentence that counts as a fact: a longer one is a story."""

_NAME, _WHO = "name", "who "
"""Subjects that are dropped last: what the person is called."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A person's statement about themselves."""

    subject: str  # a newer fact of the same subject replaces it
    text: str


class RememberedFacts:
    """The facts of one conversation, each with the id of the item that stated it."""

    def __init__(self) -> None:
        self._facts: dict[str, tuple[str, Fact]] = {}  # by subject, oldest first

    @property
    def text(self) -> str:
        """All facts as one line; "" if there are none."""
        return " ".join(fact.text for _, fact in self._facts.values())

    def saved(self) -> tuple[SavedFact, ...]:
        """Return all facts, the oldest first."""
        return tuple(SavedFact(item, fact.subject, fact.text) for item, fact in self._facts.values())

    def restore(self, saved: Iterable[SavedFact]) -> None:
        """Take back what `saved` has returned."""
        self._facts = {one.subject: (one.item, Fact(one.subject, one.text)) for one in saved}

    def note(self, item: str, words: str) -> None:
        """Keep the facts in a person's words."""
        for fact in facts(words):
            self._facts.pop(fact.subject, None)
            self._facts[fact.subject] = (item, fact)
        while len(self.text) > MEMORY_CHARACTERS:
            others = (subject for subject in self._facts if not subject.startswith((_NAME, _WHO)))
            del self._facts[next(others, next(iter(self._facts)))]

    def forget(self, item: str) -> None:
        """Drop the facts of an item."""
        self._facts = {subject: kept for subject, kept in self._facts.items() if kept[0] != item}


def facts(words: str) -> Iterator[Fact]:
    """Yield the facts that a person states in these words."""
    for sentence in sentences(words):
        if not sentence.rstrip(_CLOSERS).endswith("?"):
            for clause in _CLAUSES.split(sentence):
                plain = _FILLERS.sub("", clause.strip(), count=1).rstrip(_CLOSERS + ".!,;:")
                if plain and len(plain) <= FACT_CHARACTERS and (subject := _subject(plain)):
                    yield Fact(subject, f"{plain[0].upper()}{plain[1:]}.")


def _subject(clause: str) -> str:
    """Return the subject of a clause, "" if it states no fact about the person."""
    if asked := _REMEMBER.match(clause):
        return _subject(clause[asked.end() :]) or _key("remember", clause[asked.end() :])
    if _NAMED.match(clause):
        return _NAME
    if mine := _MINE.match(clause) or _MINE_IS.match(clause):
        noun = mine["noun"].lower()
        verb = "is" if mine["verb"].lower() in _IS else mine["verb"].lower()
        return "" if noun in _NO_FACTS else f"my {noun} {verb}"
    if state := _AM.match(clause):
        return _state(state["rest"])
    if done := _DO.match(clause):
        verb, rest = done["verb"].lower(), done["rest"]
        vague = _VAGUE.match(rest) or (verb in _DUTY and rest.lower().startswith("to "))
        return "" if vague else _key(verb, "" if verb in _HOME else rest)
    return ""


def _state(rest: str) -> str:
    """Return the subject of "I am" followed by `rest`: a name, an age, a trade, an origin; "" for a mood."""
    if _PROPER.match(rest) and len(rest.split()) <= _NAME_WORDS:
        return f"{_WHO}{rest.lower()}"  # a name or a nationality: one must not replace the other
    if _AGE.match(rest):
        return "age"
    if found := _LASTING.match(rest):
        return _key("am", found[0])
    return ""


def _key(verb: str, rest: str) -> str:
    return " ".join([verb, *rest.lower().split()[:_KEY_WORDS]])


_KEY_WORDS, _NAME_WORDS = 3, 3
_CLOSERS = " \t\n\"'”’)"
_CLAUSES = re.compile(
    r"(?:[,;]\s+|[,;]?\s+(?:and|but|because|so)\s+)(?=(?:i|my|we|our|call me|remember)\b)", re.IGNORECASE
)
_FILLERS = re.compile(
    r"\A(?:(?:well|so|and|but|oh|ah|um|uh|yes|yeah|no|nope|okay|ok|hi|hello|hey|there|actually|also|anyway|please|thanks|"
    r"thank you|you know|look|listen|by the way|just so you know|good (?:morning|evening|afternoon|day))\b[,.!]*\s+)+",
    re.IGNORECASE,
)
_REMEMBER = re.compile(
    r"(?:you (?:should|must) )?(?:please )?(?:remember|note|keep in mind|do not forget|don't forget)(?: that)?,?\s+"
    r"(?!to\b|when\b|how\b|what\b)",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?:(?:you (?:can|may) |please |just |(?:my )?(?:friends|people|everyone|everybody) )?call me|"
    r"my name(?: is|'s|’s)|(?:i am|i'm|i’m) (?:called|named))\s",
    re.IGNORECASE,
)
_MINE = re.compile(
    r"(?:my|our)\s+(?P<noun>(?:[\w'’-]+\s+){0,3}?[\w'’-]+)\s+"
    r"(?P<verb>is|are|was|were|has|have|lives?|works?|likes?|comes?|turns?|died|studies)\s",
    re.IGNORECASE,
)
_MINE_IS = re.compile(r"(?:my|our)\s+(?P<noun>(?:[\w-]+\s+){0,3}?[\w-]+)(?P<verb>'s|’s)\s", re.IGNORECASE)
_IS = frozenset({"is", "are", "was", "were", "'s", "’s"})
_NO_FACTS = frozenset({
    "question", "questions", "point", "guess", "answer", "idea", "turn", "mistake", "pleasure", "bad", "god", "problem",
    "understanding", "impression", "feeling", "hope", "goodness",
})  # fmt: skip
_AM = re.compile(r"(?:i am|i'm|i’m|we are|we're|we’re)\s+(?P<rest>.+)", re.IGNORECASE)
_PROPER = re.compile(r"[A-Z][\w'’-]+(?:\s[A-Z][\w'’-]+)*\Z")
_AGE = re.compile(r"(?:[\w-]+\s){0,3}years? old\b|\d{1,3}\Z", re.IGNORECASE)
_LASTING = re.compile(
    r"(?:not |also |originally |actually )?(?:from\b|an?\s(?!bit\b|little\b|lot\b)|(?:in|at)\s(?=[A-Z])|married|single|"
    r"divorced|widowed|retired|unemployed|pregnant|vegan|vegetarian|diabetic|deaf|blind|allergic|born|left-handed)",
)
_DO = re.compile(
    r"(?:i|we)(?:'ve|’ve)?\s+(?:(?:also|really|always|usually|still|now|just|never|currently|mostly)\s+)*"
    r"(?P<verb>live|work|study|come|was born|were born|grew up|moved|have got|have|got|own|like|love|hate|dislike|"
    r"prefer|enjoy|speak|play|drive|collect|teach|sing|don't like|don’t like|do not like|don't eat|don’t eat|"
    r"do not eat|can't eat|can’t eat|cannot eat|can't see|can't hear)\s+(?P<rest>.+)",
    re.IGNORECASE,
)
_HOME = frozenset({"live", "work", "come"})
_DUTY = frozenset({"have", "have got", "got"})
_VAGUE = re.compile(
    r"(?:it|that|this|them|those|you|your|no idea|to (?:know|hear|see|ask|talk|say|go))\b|"
    r"(?:an?|another|some|one(?: more)?) (?:questions?|ideas?|problems?)\b|"
    r"(?:been|seen|heard|done|said|had|tried|asked|told|never)\b",
    re.IGNORECASE,
)
