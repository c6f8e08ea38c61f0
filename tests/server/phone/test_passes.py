"""One-time passes, what follows a call, and signatures that were seen: once, for a time, and never too many."""

from __future__ import annotations

import string

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.phone.passes import (
    PASS_SECONDS,
    SEEN_SECONDS,
    STEP_SECONDS,
    ExpiringStore,
    NextSteps,
    Passes,
    SeenSignatures,
)
from voxlane.server.protocols.phone.documents import NextStep
from voxlane.server.protocols.phone.line_events import CallFacts


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


FACTS = CallFacts("twilio", "CA1", "+4917012345678", "+4930123456")


def test_a_pass_is_good_once(clock: Clock) -> None:
    passes = Passes(clock)
    token = passes.issue(FACTS)
    assert passes.redeem(token) == FACTS
    assert passes.redeem(token) is None
    assert passes.redeem("") is None
    assert passes.redeem("\ud800") is None
    assert len(passes) == 0


def test_a_pass_is_good_for_a_minute(clock: Clock) -> None:
    passes = Passes(clock)
    soon, late = passes.issue(FACTS), passes.issue(FACTS)
    clock.now += PASS_SECONDS - 0.001
    assert passes.redeem(soon) == FACTS
    clock.now += 0.001
    assert passes.redeem(late) is None


def test_passes_differ_and_have_letters_and_digits_alone(clock: Clock) -> None:
    passes = Passes(clock)
    tokens = {passes.issue(FACTS) for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 48 and set(token) <= set(string.ascii_letters + string.digits) for token in tokens)


def test_the_oldest_pass_makes_room(clock: Clock) -> None:
    passes = Passes(clock, most=3)
    tokens = [passes.issue(CallFacts("twilio", str(number))) for number in range(5)]
    assert len(passes) == 3
    assert [passes.redeem(token) is not None for token in tokens] == [False, False, True, True, True]


def test_the_store_does_not_show_a_pass(clock: Clock) -> None:
    passes = Passes(clock)
    token = passes.issue(FACTS)
    assert token not in repr(vars(passes._calls))


def test_what_follows_is_told_once(clock: Clock) -> None:
    steps = NextSteps(clock)
    assert steps.take("CA1") is None
    steps.transfer("CA1", "+4930123456", "+4930999999")
    assert steps.take("CA2") is None
    assert steps.take("CA1") == NextStep("+4930123456", "+4930999999")
    assert steps.take("CA1") is None


def test_what_follows_can_change_and_be_forgotten(clock: Clock) -> None:
    steps = NextSteps(clock)
    steps.transfer("CA1", "+4930111111")
    steps.transfer("CA1", "sip:desk@example.org")
    assert len(steps) == 1
    assert steps.take("CA1") == NextStep("sip:desk@example.org")
    steps.transfer("CA1", "+4930111111")
    steps.forget("CA1")
    steps.forget("CA1")
    assert steps.take("CA1") is None
    steps.transfer("", "+4930111111")  # a call without a name cannot be found again
    assert len(steps) == 0


def test_what_follows_is_kept_for_five_minutes(clock: Clock) -> None:
    steps = NextSteps(clock)
    steps.transfer("CA1", "+4930111111")
    clock.now += STEP_SECONDS
    assert steps.take("CA1") is None


def test_a_ticket_is_for_one_call_of_one_server(clock: Clock) -> None:
    steps, others = NextSteps(clock), NextSteps(clock)
    assert steps.ticket("CA1") == steps.ticket("CA1")
    assert len({steps.ticket("CA1"), steps.ticket("CA2"), others.ticket("CA1")}) == 3


def test_a_signature_is_new_once(clock: Clock) -> None:
    seen = SeenSignatures(clock)
    assert seen.is_first("a")
    assert seen.is_first("b")
    assert not seen.is_first("a")
    clock.now += SEEN_SECONDS
    assert seen.is_first("a")


def test_signatures_are_few_enough(clock: Clock) -> None:
    seen = SeenSignatures(clock, most=10)
    for number in range(100):
        assert seen.is_first(str(number))
        clock.now += 1
    assert len(seen) == 10
    assert not seen.is_first("99")


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "take", "wait"]), st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 9)
        )
    )
)
def test_a_store_is_a_dictionary_that_forgets(steps: list[tuple[str, bytes, int]]) -> None:
    clock = Clock()
    store: ExpiringStore[int] = ExpiringStore(10.0, 3, clock)
    model: dict[bytes, tuple[float, int]] = {}
    for step, key, number in steps:
        if step == "wait":
            clock.now += number
        model = {name: one for name, one in model.items() if one[0] > clock.now}
        if step == "put":
            store.put(key, number)
            model.pop(key, None)
            if len(model) == 3:
                del model[min(model, key=lambda name: (model[name][0], list(model).index(name)))]
            model[key] = clock.now + 10.0, number
        elif step == "take":
            found = model.pop(key, None)
            assert store.take(key) == (None if found is None else found[1])
        assert [name in store for name in (b"a", b"b", b"c", b"d")] == [
            name in model for name in (b"a", b"b", b"c", b"d")
        ]
        assert len(store) <= 3
