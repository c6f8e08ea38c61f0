"""What the compiler makes of the kernels that only Hopper runs, and Triton's interpreter does not know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
COMPILE = """
import sys
sys.path.append(sys.argv[1])
from support.kernels.attention_tune import Case, Group, hopper_tuning, report
heads, kv_heads, width, context, batch, queries = map(int, sys.argv[2:8])
case = Case(heads, kv_heads, width, context, batch, queries=queries, causal=sys.argv[8] == "causal")
report([Group("", (case,), (hopper_tuning(width, batch * queries * heads),))])
"""


@pytest.mark.parametrize(
    "shape",
    [
        *("32 8 64 512 8 512 causal", "20 20 64 1500 2 1500 all", "32 8 64 8192 1 256 causal"),
        *("16 8 128 512 8 512 causal", "16 8 128 4096 1 2048 causal", "16 8 128 4096 1 64 causal"),
    ],
)
def test_as_many_programs_fit_as_are_meant_and_no_product_waits_for_another(shape: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", COMPILE, str(BENCHMARKS), *shape.split()]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert "hopper_kernel" in said, said
    assert "NOT ITS PROGRAMS" not in said, said
    assert "ONE PRODUCT AFTER THE OTHER" not in said, said
