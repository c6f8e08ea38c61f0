"""Rates for each address."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.http.address_rates import AddressPauses, AddressRates


def test_an_address_has_a_burst_and_then_its_rate() -> None:
    rates = AddressRates(2.0, 3.0, 10)
    assert [rates.spend("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert [rates.spend("a", 1.0) for _ in range(3)] == [True, True, False]
    assert rates.spend("b", 1.0)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.0, 3.0)), max_size=60), st.integers(4, 8))
def test_one_address_never_takes_from_another(steps: list[tuple[str, float]], most: int) -> None:
    together = AddressRates(1.0, 2.0, most)
    alone = {address: AddressRates(1.0, 2.0, most) for address in "abcd"}
    now = 0.0
    for address, passed in steps:
        now += passed
        assert together.spend(address, now) == alone[address].spend(address, now)


def test_few_addresses_are_remembered() -> None:
    rates = AddressRates(0.0, 1.0, 2)
    assert all(rates.spend(address, 0.0) for address in ("a", "b"))
    assert not rates.spend("a", 0.0)  # now the newest
    assert rates.spend("c", 0.0)  # b is forgotten
    assert not rates.spend("a", 0.0)
    assert rates.spend("b", 0.0)


def test_an_address_pauses_alone_and_the_oldest_is_forgotten() -> None:
    pauses = AddressPauses(2.0, 2)
    assert pauses.left_s("a", 0.0) == 0.0
    for address, now in (("a", 0.0), ("b", 0.5), ("a", 1.0)):
        pauses.begin(address, now)
    assert [pauses.left_s(address, 1.5) for address in "abc"] == [1.5, 1.0, 0.0]
    assert pauses.left_s("b", 9.0) == 0.0
    pauses.begin("c", 1.5)
    assert [pauses.left_s(address, 1.5) for address in "abc"] == [1.5, 0.0, 2.0]
