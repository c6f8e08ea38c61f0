"""Rates for each address."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.http.address_rates import AddressRates


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
