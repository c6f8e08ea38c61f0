"""The device's own block tables while requests come, go and give way: what it reads is what the host says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from simulation import LateEngine, Launched, Simulation, expected_text

from voxlane.engine.api import Policy, Priority, SamplingParams, Submit
from voxlane.engine.runners.cuda.decoder import is_decode
from voxlane.engine.runners.cuda.rows import DecodeRows
from voxlane.engine.schedule.plan import ModelBatch


def greedy(name: str, text: str, tokens: int, priority: Priority = Priority.NORMAL) -> Submit:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Submit(name, "complete", text=text, sampling=sampling, priority=priority)


@dataclass
class TableEngine(LateEngine):
    """A device with block tables of its own, which it is sent as a CUDA device is."""

    rows: DecodeRows = field(default_factory=lambda: DecodeRows(8, 4))
    tables: dict[int, list[int]] = field(default_factory=dict)

    def launch(self, load: ModelBatch) -> Launched:
        decodes = [row for row in load.rows if is_decode(row)]
        places, joined = self.rows.place(decodes)
        self.tables |= {place: list(request.table.blocks) for place, request in joined}
        for row, place in zip(decodes, places, strict=True):
            blocks, last = row.request.table.blocks, row.start // self.block_tokens
            self.tables[place][last:] = [blocks[last]]
            assert self.tables[place] == blocks, "the device reads blocks that are others' now"
        self.rows.send()
        self.rows.elsewhere = {row.request: 0 for row in load.rows if not is_decode(row)}
        return super().launch(load)


@pytest.mark.parametrize("policy", ["priority", "deadline"])
def test_who_gives_its_blocks_away_and_is_back_at_once_reads_its_new_ones(policy: Policy) -> None:
    simulation = Simulation(make_engine=TableEngine, blocks=11, host_blocks=0, max_batch=8, policy=policy)
    twins = [greedy(name, "ABCDEFGHIJKLM", 30) for name in "ab"]  # read in one step: only one's blocks are registered
    simulation.send(*twins)
    while len(simulation.texts.get("b", "")) < 3:
        simulation.step()
    simulation.step(greedy("c", "ZYXWVUTSRQ", 2, Priority.CRITICAL))
    simulation.run(500)
    assert simulation.ends["b"].stats.preemptions > 0
    assert all(simulation.texts[name] == expected_text("ABCDEFGHIJKLM", 30) for name in "ab")
