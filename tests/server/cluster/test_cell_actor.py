"""The actor of a cell, with a stand-in for Ray and for its keeper."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from voxlane.server import log
from voxlane.server.cluster import actor
from voxlane.server.cluster.keeper import CellKeeper
from voxlane.server.cluster.plan import ClusterPlan, specs_of


@pytest.mark.parametrize(
    ("host", "listens", "told"),
    [
        ("auto", "10.0.1.7", "10.0.1.7"),
        ("0.0.0.0", "0.0.0.0", "10.0.1.7"),
        ("::", "::", "10.0.1.7"),
        ("10.9.9.9", "10.9.9.9", "10.9.9.9"),
    ],
)
def test_others_are_told_an_address_that_they_can_reach(
    host: str, listens: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.0.1.7"), get_gpu_ids=list)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(log, "set_up", lambda level: None)
    monkeypatch.setattr(CellKeeper, "start", lambda keeper: None)
    made = actor.CellActor(specs_of(ClusterPlan(host=host))[0].as_dict())
    assert made._keeper._host == listens
    assert made.facts()["host"] == told
