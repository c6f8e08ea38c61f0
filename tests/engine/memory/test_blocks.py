"""The pool against pages that remember what was written: a shared block means the same prefix, always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from voxlane.engine.memory import blocks as kv
from voxlane.engine.memory.blocks import DIGEST_BYTES, BlockPool, BlockTable, OutOfBlocks, StateWindow

tokens = st.lists(st.integers(0, 1), max_size=11)


class Pool(RuleBasedStateMachine):
    """Tables that grow, shrink, fork and share, beside a plain memory of what each slot holds."""

    @initialize(
        blocks=st.integers(1, 14),
        size=st.integers(1, 4),
        cache=st.booleans(),
        reach=st.integers(0, 3),
        spare=st.integers(0, 2),
    )
    def start(self, blocks, size, cache, reach, spare):
        self.window = StateWindow(reach, min(reach + spare, size)) if reach else None
        self.pool = BlockPool(blocks, size, key=b"k", prefix_cache=cache, state=self.window)
        self.memory: dict[int, tuple] = {}
        self.states: dict[tuple[int, int], tuple] = {}  # by block and place in it
        self.tables: list[tuple[BlockTable, str, list[int]]] = []

    def write(self, index, new, behind=0):
        """Append tokens to a table; the last `behind` of them are not computed yet."""
        table, salt, held = self.tables[index]
        size, before = self.pool.block_tokens, table.length
        free, cached, warm = self.sets()
        try:
            needed = table.needed(len(new))
            available = self.pool.available
            copies = table.append(len(new))
        except OutOfBlocks:
            assert needed > available
            assert table.length == before
            return False
        assert self.pool.available == available - needed
        evicted = max(needed - len(free), 0)
        hot = max(evicted - len(cached), 0)
        assert self.sets()[1:] == (cached[evicted:], warm[: len(warm) - hot]), "the wrong one was taken"
        for source, target in copies:
            for offset in range(size):
                value = self.memory.get(source * size + offset)
                self.memory[target * size + offset] = value
            self.copy_states(source, target)
        held.extend(new)
        for position, slot in enumerate(table.slots(before, table.length), start=before):
            self.memory[slot] = (salt, *held[: position + 1])
            if self.window is not None:
                self.states[self.state_place(slot)] = self.memory[slot]
        computed = table.length - behind
        table.seal(held, computed if behind else None)
        for number in range(before // size, table.length // size):
            if number < computed // size and self.pool.prefix_cache:
                assert self.pool.find(self.digest(salt, held[: (number + 1) * size])) is not None
            elif number >= computed // size:
                assert table.blocks[number] not in self.pool._digest_of, "found before it is computed"
        return True

    def state_place(self, slot):
        size = self.pool.block_tokens
        return slot // size, slot % size % self.window.slots

    def copy_states(self, source, target):
        for place in range(self.window.slots if self.window is not None else 0):
            self.states[target, place] = self.states.get((source, place))

    def sets(self):
        """Return the free blocks, the cached and the warm ones in the order they became so."""
        return list(self.pool._free), list(self.pool._cached), list(self.pool._warm)

    def digest(self, salt, held):
        """Return what a block is known by that ends with these tokens."""
        found, size = self.pool.root(salt), self.pool.block_tokens
        for start in range(0, len(held), size):
            found = self.pool.extend(found, held[start : start + size])
        return found

    def shorten(self, table, length):
        """Rewind a table, or free it; see to it that its last blocks become available first."""
        free, cached, warm = self.sets()
        size, blocks, long = self.pool.block_tokens, list(table.blocks), table.length
        owned = {block for block in blocks if self.pool._references[block] == 1}
        table.rewind(length) if length else table.free()
        if self.window is None or length == long:
            assert table.length == length
        assert length // size * size <= table.length <= length, "no more than a block is computed again"
        gone = [block for block in blocks[-(-table.length // size) :] if block in owned]
        gone.reverse()
        named = [block for block in gone if block in self.pool._digest_of]
        unnamed = [block for block in gone if block not in named]
        assert self.sets() == (free, cached + named, warm + unnamed)
        assert self.pool.untouched == len(free) + len(cached) + len(named)

    def known(self, salt, new):
        """Return how many tokens of a prompt some block is known to hold."""
        size, count = self.pool.block_tokens, 0
        ends = {self.memory[block * size + size - 1] for block in self.pool._digest_of}
        while count + size < len(new) and (salt, *new[: count + size]) in ends:
            count += size
        return count

    @rule(salt=st.sampled_from(["", "x"]), new=tokens, behind=st.sampled_from([0, 0, 1, 5]))
    def create(self, salt, new, behind):
        table, known = BlockTable(self.pool, salt), self.known(salt, new)
        adopted = table.adopt(new)
        assert adopted == known
        assert adopted % self.pool.block_tokens == 0
        assert adopted < max(len(new), 1)
        self.tables.append((table, salt, new[:adopted]))
        if not self.write(len(self.tables) - 1, new[adopted:], min(behind, len(new) - adopted)):
            # What a request in the queue does: give the prefix back, and come again with the same tokens.
            table.free()
            assert table.adopt(new) == adopted
            table.free()
            self.tables.pop()

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), new=st.one_of(st.lists(st.integers(0, 1), min_size=1, max_size=1), tokens))
    def grow(self, data, new):
        self.write(data.draw(st.integers(0, len(self.tables) - 1)), new)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def rewind(self, data):
        table, _, held = data.draw(st.sampled_from(self.tables))
        length = data.draw(st.integers(0, table.length))
        self.shorten(table, length)
        del held[table.length :]
        if not length:  # what is written next may be something else
            table.rewind(0)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(1, 6))
    def withdraw(self, data, count):
        """Plan tokens that no step writes, and take the plan back."""
        table, _, _ = data.draw(st.sampled_from(self.tables))
        before, digests = table.length, dict(self.pool._digest_of)
        if table.needed(count) > self.pool.available or table._must_copy(count):
            return
        table.append(count)
        table.withdraw(before)
        assert table.length == before
        assert self.pool._digest_of.items() <= digests.items()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def swap(self, data):
        """Send a table's blocks away, and bring their content back into others."""
        table, _, held = data.draw(st.sampled_from(self.tables))
        size = self.pool.block_tokens
        kept = [[self.memory.get(block * size + offset) for offset in range(size)] for block in table.blocks]
        slots = range(self.window.slots if self.window is not None else 0)
        states = [[self.states.get((block, place)) for place in slots] for block in table.blocks]
        table.free()
        if table.needed(len(held)) > self.pool.available:
            self.tables = [one for one in self.tables if one[0] is not table]
            return
        table.append(len(held))
        for block, contents, vectors in zip(table.blocks, kept, states, strict=True):
            self.memory |= {block * size + offset: content for offset, content in enumerate(contents)}
            self.states |= {(block, place): vector for place, vector in enumerate(vectors)}

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        table, salt, held = data.draw(st.sampled_from(self.tables))
        self.tables.append((table.fork(), salt, list(held)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data):
        table, _, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.shorten(table, 0)
        assert table.blocks == []

    @rule()
    def cool(self):
        free, cached, warm = self.sets()
        self.pool.cool()
        assert self.sets() == (free + warm, cached, [])
        assert self.pool.untouched == self.pool.available

    @invariant()
    def sound(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check(table for table, _, _ in self.tables)
        assert self.pool.prefix_cache or not self.pool._digest_of
        for block, digest in self.pool._digest_of.items():
            size = self.pool.block_tokens
            salt, *held = self.memory[(block + 1) * size - 1]
            for back in range(size):
                assert self.memory[(block + 1) * size - 1 - back] == (salt, *held[: len(held) - back])
            assert digest == self.digest(salt, held), "a block is known by what it does not hold"
        for table, salt, held in self.tables:
            assert table.length == len(held)
            for position, slot in enumerate(table.slots(0, table.length)):
                assert self.memory[slot] == (salt, *held[: position + 1]), "a block holds another prefix"
            for position in range(max(table.length - self.window.reach, 0), table.length) if self.window else ():
                (slot,) = table.slots(position, position + 1)
                found = self.states.get(self.state_place(slot))
                assert found == (salt, *held[: position + 1]), "a convolution finds another past"

    def teardown(self):
        if hasattr(self, "pool"):
            for table, _, _ in self.tables:
                table.free()
            self.pool.check()
            assert self.pool.available == self.pool.num_blocks


Pool.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
TestPool = Pool.TestCase


def filled(pool: BlockPool, tokens: list[int], salt: str = "") -> BlockTable:
    table = BlockTable(pool, salt)
    table.adopt(tokens)
    table.append(len(tokens) - table.length)
    table.seal(tokens)
    return table


def test_a_rewound_block_is_known_by_what_is_written_now():
    pool = BlockPool(4, 4, key=b"k")
    table, held = filled(pool, [1] * 8), [1] * 6 + [2, 2]
    table.rewind(6)
    table.append(2)
    table.seal(held)
    digest = pool.extend(pool.extend(pool.root(""), held[:4]), held[4:])
    assert pool.find(digest) == table.blocks[1]


def test_a_freed_prefix_is_found_again_until_it_is_evicted():
    pool = BlockPool(4, 4, key=b"k")
    first = list(range(9))
    filled(pool, first).free()
    assert (pool.free, pool.cached) == (2, 2)
    again = BlockTable(pool)
    assert again.adopt(first) == 8
    again.free()
    pool.take(4)
    assert BlockTable(pool).adopt(first) == 0


def test_the_least_recently_used_prefix_goes_first_and_its_tail_before_its_head():
    pool = BlockPool(4, 4, key=b"k")
    old, new = [1] * 9, [2] * 5
    filled(pool, old).free()
    filled(pool, new).free()
    pool.cool()
    pool.take(2)  # one free block is left, so one cached block goes: the tail of the older prefix
    assert BlockTable(pool).adopt(new) == 4
    table = BlockTable(pool)
    assert table.adopt(old) == 4


def test_tenants_share_nothing():
    pool = BlockPool(8, 4, key=b"k")
    filled(pool, [1] * 9, "a").free()
    assert BlockTable(pool, "b").adopt([1] * 9) == 0
    assert BlockTable(pool, "a").adopt([1] * 9) == 8


def test_digests_depend_on_the_key():
    one, other = BlockPool(1, 4, key=b"1"), BlockPool(1, 4, key=b"2")
    assert one.extend(one.root(""), [1]) != other.extend(other.root(""), [1])


@pytest.mark.parametrize(
    ("slots", "wanted", "kept"),
    [
        (2, 11, 8),  # the tenth's vector was overwritten by the twelfth's
        (2, 8, 8),  # the block before has its last ones
        (2, 14, 14),
        (3, 13, 13),  # one dropped token overwrote nothing that is needed
        (3, 12, 8),
        (4, 12, 12),
        (4, 11, 8),
        (8, 9, 9),  # as many slots as tokens: nothing is ever overwritten
    ],
)
def test_a_rewind_ends_where_a_convolution_finds_its_past(slots: int, wanted: int, kept: int) -> None:
    pool = BlockPool(4, 8, state=StateWindow(2, slots))
    table = BlockTable(pool)
    table.append(14)
    table.rewind(wanted)
    assert table.length == kept
    table.append(14 - kept)
    table.withdraw(kept)
    assert table.length == kept


def test_what_was_written_before_a_rewind_counts_after_it() -> None:
    table = BlockTable(BlockPool(4, 8, state=StateWindow(2, 4)))
    table.append(14)
    table.rewind(12)  # the fourteenth token has overwritten the tenth
    assert table.length == 12
    table.rewind(11)
    assert table.length == 8


def test_what_was_written_before_a_swap_counts_after_it() -> None:
    table = BlockTable(BlockPool(4, 8, state=StateWindow(2, 4)))
    table.append(14)
    table.rewind(12)
    table.free()  # its blocks go to the host as they are
    table.append(12)
    table.rewind(11)
    assert table.length == 8


def test_a_fork_copies_only_the_block_it_writes_to():
    pool = BlockPool(8, 4)
    table = filled(pool, [1, 2, 3, 4, 5])
    twin = table.fork()
    copies = twin.append(1)
    assert [source for source, _ in copies] == [table.blocks[1]]
    assert twin.blocks[0] == table.blocks[0]
    assert table.append(1) == []  # the last owner writes in place


def test_taking_too_much_changes_nothing():
    pool = BlockPool(2, 4)
    with pytest.raises(OutOfBlocks):
        pool.take(3)
    assert pool.available == 2
    pool.check()


def test_the_books_notice_a_leak():
    pool = BlockPool(2, 4)
    pool.take(1)
    with pytest.raises(AssertionError, match="references"):
        pool.check()


def _rename(entries: dict[int, Any], old: int, new: int) -> None:
    entries[new] = entries.pop(old)


def _exchange(entries: dict[bytes, int]) -> None:
    one, other = list(entries)[:2]
    entries[one], entries[other] = entries[other], entries[one]


BREAKAGES: dict[str, tuple[bool, Callable[[BlockPool, BlockTable], object]]] = {  # whether the sums tell
    "is lost": (True, lambda pool, table: pool._free.pop()),
    "in two sets": (True, lambda pool, table: pool._free.append(table.blocks[0])),
    "do not match": (True, lambda pool, table: table.blocks.pop()),
    "is torn": (True, lambda pool, table: pool._block_of.update({b"x": 0})),
    "is twice": (False, lambda pool, table: pool._free.__setitem__(0, pool._free[1])),
    "and owned": (False, lambda pool, table: pool._free.__setitem__(0, table.blocks[4])),
    "is not registered": (False, lambda pool, table: _rename(pool._cached, next(iter(pool._cached)), pool._free[0])),
    "is registered": (False, lambda pool, table: _rename(pool._digest_of, table.blocks[0], pool._free[0])),
    "index is torn": (False, lambda pool, table: _exchange(pool._block_of)),
    "match the tables": (False, lambda pool, table: table.blocks.__setitem__(0, table.blocks[1])),
}


@pytest.mark.parametrize("told", BREAKAGES)
def test_the_books_notice_whatever_is_wrong_and_most_of_it_by_their_sums(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv, "AUDIT_PIECE", 2)
    pool = BlockPool(20, 4, key=b"k")
    filled(pool, [1] * 17).free()
    table = filled(pool, [2] * 18)
    assert sum(1 for _ in pool.audit([table])) > 10, "it is to be done in pieces"
    by_sums, break_it = BREAKAGES[told]
    break_it(pool, table)
    audit = pool.audit([table])
    if not by_sums:
        next(audit)
    with pytest.raises(AssertionError, match=told):
        next(audit) if by_sums else list(audit)


def test_a_block_that_is_written_to_again_is_found_no_more() -> None:
    pool = BlockPool(4, 4, key=b"k")
    table = filled(pool, [1] * 4)
    table.rewind(2)
    table.append(1)
    assert BlockTable(pool).adopt([1] * 5) == 0


def test_registered_blocks_survive_their_process() -> None:
    kept = memoryview(bytearray(8 * DIGEST_BYTES))
    pool = BlockPool(8, 4, key=b"k", kept=kept)
    tokens = list(range(10))
    table = BlockTable(pool, "a")
    table.append(10)
    table.seal(tokens)
    other = BlockTable(pool, "b")
    other.append(4)  # not computed yet
    heir = BlockPool(8, 4, key=b"k", kept=kept)  # the first process ends here, whatever it was doing
    heir.recover()
    heir.check()
    assert (heir.cached, heir.free, heir.used) == (2, 6, 0)
    found = BlockTable(heir, "a")
    assert found.adopt(tokens) == 8
    assert found.blocks == table.blocks[:2]
    assert BlockTable(heir, "b").adopt(tokens) == 0, "another salt finds nothing"
    heir.check([found])


def test_blocks_that_were_given_away_do_not_survive() -> None:
    kept = memoryview(bytearray(2 * DIGEST_BYTES))
    pool = BlockPool(2, 4, kept=kept)
    table = BlockTable(pool)
    table.append(8)
    table.seal(list(range(8)))
    table.free()
    pool.take(1)  # evicts one: it is about to be overwritten
    heir = BlockPool(2, 4, kept=kept)
    heir.recover()
    assert (heir.cached, heir.free) == (1, 1)
    heir.forget_kept()
    heir.recover()
    assert (heir.cached, heir.free) == (0, 2)
    heir.check()
