"""The pool against pages that remember what was written: a shared block means the same prefix, always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from voxlane.engine import kv
from voxlane.engine.kv import BlockPool, BlockTable, OutOfBlocks

tokens = st.lists(st.integers(0, 1), max_size=11)


class Pool(RuleBasedStateMachine):
    """Tables that grow, shrink, fork and share, beside a plain memory of what each slot holds."""

    @initialize(blocks=st.integers(1, 14), size=st.integers(1, 4), cache=st.booleans())
    def start(self, blocks, size, cache):
        self.pool = BlockPool(blocks, size, key=b"k", prefix_cache=cache)
        self.memory: dict[int, tuple] = {}
        self.tables: list[tuple[BlockTable, str, list[int]]] = []

    def write(self, index, new):
        table, salt, held = self.tables[index]
        size, before = self.pool.block_tokens, table.length
        try:
            needed = table.needed(len(new))
            available = self.pool.available
            copies = table.append(len(new))
        except OutOfBlocks:
            assert needed > available
            assert table.length == before
            return False
        assert self.pool.available == available - needed
        for source, target in copies:
            for offset in range(size):
                value = self.memory.get(source * size + offset)
                self.memory[target * size + offset] = value
        held.extend(new)
        for position, slot in enumerate(table.slots(before, table.length), start=before):
            self.memory[slot] = (salt, *held[: position + 1])
        table.seal(held)
        return True

    @rule(salt=st.sampled_from(["", "x"]), new=tokens)
    def create(self, salt, new):
        table = BlockTable(self.pool, salt)
        adopted = table.adopt(new)
        assert adopted % self.pool.block_tokens == 0
        assert adopted < max(len(new), 1)
        self.tables.append((table, salt, new[:adopted]))
        if not self.write(len(self.tables) - 1, new[adopted:]):
            # What a request in the queue does: give the prefix back, and come again with the same tokens.
            table.free()
            assert table.adopt(new) == adopted
            table.free()
            self.tables.pop()

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), new=tokens)
    def grow(self, data, new):
        self.write(data.draw(st.integers(0, len(self.tables) - 1)), new)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def rewind(self, data):
        table, _, held = data.draw(st.sampled_from(self.tables))
        length = data.draw(st.integers(0, table.length))
        table.rewind(length)
        del held[length:]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork(self, data):
        table, salt, held = data.draw(st.sampled_from(self.tables))
        self.tables.append((table.fork(), salt, list(held)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data):
        table, _, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        table.free()
        assert table.blocks == []

    @invariant()
    def sound(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check(table for table, _, _ in self.tables)
        for table, salt, held in self.tables:
            assert table.length == len(held)
            for position, slot in enumerate(table.slots(0, table.length)):
                assert self.memory[slot] == (salt, *held[: position + 1]), "a block holds another prefix"

    def teardown(self):
        if hasattr(self, "pool"):
            for table, _, _ in self.tables:
                table.free()
            self.pool.check()
            assert self.pool.available == self.pool.num_blocks


Pool.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestPool = Pool.TestCase


def filled(pool: BlockPool, tokens: list[int], salt: str = "") -> BlockTable:
    table = BlockTable(pool, salt)
    table.adopt(tokens)
    table.append(len(tokens) - table.length)
    table.seal(tokens)
    return table


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
    "is not registered": (False, lambda pool, table: _rename(pool._idle, next(iter(pool._idle)), pool._free[0])),
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
