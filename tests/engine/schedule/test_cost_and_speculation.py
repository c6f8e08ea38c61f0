"""Cost model, prompt lookup and text stream by property."""

from __future__ import annotations

import itertools
from random import Random

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.schedule.cost import CostModel, Work
from voxlane.engine.schedule.request import ChatPayload, Request
from voxlane.engine.schedule.speculation import WINDOW, accepted, guess, propose
from voxlane.engine.text.detokenizer import TextStream

some = settings(max_examples=examples(100))
counts = st.integers(0, 4096)
works = st.builds(Work, rows=st.integers(0, 64), prefill_tokens=counts, context_tokens=counts, pairs=counts)


class TestCost:
    @some
    @given(st.lists(st.tuples(works, st.floats(0, 10)), max_size=40), works, st.integers(1, 64), counts)
    def test_more_work_never_looks_cheaper(self, history, work, count, context):
        model = CostModel()
        for past, seconds in history:
            model.observe(past, seconds)
        assert 0 <= model.predict(work) <= model.predict(work.plus(count, context))

    @some
    @given(st.floats(1e-3, 2e-2), st.floats(1e-5, 1e-3), st.floats(1e-4, 2e-3), st.integers(0, 1 << 32))
    def test_it_learns_a_linear_machine(self, base, per_row, per_token, seed):
        random = Random(seed)

        def truth(work: Work) -> float:
            return base + per_row * work.rows + per_token * work.prefill_tokens

        model = CostModel()
        for _ in range(300):
            work = Work()
            for _ in range(random.randint(1, 8)):
                work = work.plus(random.choice([1, 1, 1, 16, 64]), random.randint(1, 500))
            model.observe(work, truth(work))
        probe = Work().plus(1, 100).plus(32, 200)
        assert model.predict(probe) == pytest.approx(truth(probe), rel=0.1)

    @pytest.mark.parametrize("batch", [4, 64])
    def test_it_learns_what_prompts_cost_however_short_they_are(self, batch):
        """As on a GPU: milliseconds for rows, tokens that cost microseconds, and a pass of its own for prompts."""
        random = Random(batch)

        def truth(work: Work) -> float:
            return 9e-4 + 1e-5 * work.rows + (1.5e-3 + 1e-6 * work.prefill_tokens if work.prompts else 0.0)

        model = CostModel()
        for _ in range(200):
            work = Work()
            for _ in range(random.randint(1, batch)):
                work.add(1, random.randint(1, 2000))
            if random.random() < 0.3:
                count = random.choice([16, 64, 700])
                work.add(count, count)
            model.observe(work, truth(work) * random.uniform(0.95, 1.05))
        decodes = Work(rows=batch, context_tokens=1000 * batch)
        assert model.predict(decodes) == pytest.approx(truth(decodes), rel=0.15)
        left_s = truth(decodes) + 2.1e-3
        assert 300 < model.largest_chunk(decodes, 0, 4096, left_s) < 900  # 600 fit
        assert model.largest_chunk(decodes, 0, 4096, truth(decodes) + 1e-3) <= 1  # none does

    def test_one_stall_is_not_believed(self):
        model = CostModel()
        work = Work().plus(1, 10)
        for _ in range(50):
            model.observe(work, 0.01)
        model.observe(work, 30.0)
        assert model.predict(work) < 0.05

    @some
    @given(works, counts, st.integers(0, 512), st.floats(0, 1))
    def test_the_largest_chunk_is_the_largest(self, work, computed, most, seconds):
        model = CostModel()
        chunk = model.largest_chunk(work, computed, most, seconds)
        assert 0 <= chunk <= most
        if chunk:
            assert model.predict(work.plus(chunk, computed + chunk)) <= seconds
        if chunk < most:
            assert model.predict(work.plus(chunk + 1, computed + chunk + 1)) > seconds


class TestLookup:
    @some
    @given(st.lists(st.integers(0, 3), max_size=60), st.integers(-1, 8))
    def test_a_guess_followed_the_same_phrase_before(self, tokens, count):
        guess = propose(tokens, count)
        assert len(guess) <= max(count, 0)
        if guess:
            text, phrase = bytes(tokens), bytes(tokens[-2:])
            assert phrase + bytes(guess) in text

    def test_the_most_recent_occurrence_wins(self):
        assert propose([1, 2, 3, 9, 1, 2, 3, 7, 1, 2, 3], 1) == [7]

    def test_a_longer_phrase_is_better_evidence(self):
        assert propose([5, 1, 2, 8, 6, 1, 2, 9, 5, 1, 2], 1) == [8]

    def test_the_search_is_bounded(self):
        assert propose([1, 2, 3, *([4] * WINDOW), 1, 2, 3], 2) == []

    def test_nothing_is_guessed_while_tokens_are_barred(self):
        table = BlockTable(BlockPool(4, 4))
        request = Request("r", "chat", [1, 2, 3, 7, 1, 2, 3], 7, table)
        table.append(6)
        assert guess(request, 7, 8, 2) == [7, 1]
        request.payload = ChatPayload(barred_starts=frozenset({7}))
        assert guess(request, 7, 8, 2) == []
        request.prompt_tokens = 6  # the last is the first of the output
        assert guess(request, 7, 8, 2) == [7, 1]

    @some
    @given(st.lists(st.integers(0, 2), max_size=6), st.data())
    def test_what_is_accepted_is_what_greedy_would_have_said(self, drafts, data):
        size = len(drafts) + 1
        greedy = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
        result = accepted(drafts, greedy)
        assert result == greedy[: len(result)]
        assert result[:-1] == drafts[: len(result) - 1]
        assert len(result) == len(greedy) or greedy[len(result) - 1] != drafts[len(result) - 1]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


class TestTextStream:
    @some
    @given(st.text(), st.lists(st.integers(0, 60)))
    def test_any_split_gives_the_same_text_in_whole_characters(self, text, cuts):
        stream = TextStream()
        parts = [stream.push(piece) for piece in pieces(text.encode(), cuts)]
        assert "".join(parts) + stream.finish() == text
        assert all("\ufffd" not in part for part in parts) or "\ufffd" in text

    @some
    @given(st.binary(), st.lists(st.integers(0, 60)))
    def test_bytes_that_are_no_text_are_replaced_as_python_does(self, data, cuts):
        stream = TextStream()
        parts = [stream.push(piece) for piece in pieces(data, cuts)]
        assert "".join(parts) + stream.finish() == data.decode("utf-8", "replace")

    @some
    @given(
        st.text(alphabet="ab", max_size=30),
        st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
        st.lists(st.integers(0, 30)),
    )
    def test_text_ends_before_the_first_stop_string(self, text, stops, cuts):
        stream = TextStream(stops)
        shown = ""
        for piece in pieces(text.encode(), cuts):
            shown += stream.push(piece)
            if stream.stopped:
                break
        shown += stream.finish()
        ends = [text.find(stop) for stop in stops if stop in text]
        if ends:
            assert stream.stopped
            assert not any(stop in shown for stop in stops)
            assert text.startswith(shown)
        else:
            assert shown == text

    def test_what_may_become_a_stop_string_is_held_back(self):
        stream = TextStream(["END"])
        assert stream.push(b"an E") == "an "
        assert stream.push(b"N") == ""
        assert stream.push(b"T") == "ENT"
        assert stream.push(b"END of it") == ""
        assert stream.stopped
        assert stream.push(b"more") == ""
        assert stream.finish() == ""
