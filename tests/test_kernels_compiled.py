"""What the compiler makes of kernels that Triton's interpreter does not know, or that it is too lenient with."""

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
from support.kernels.ways import Case, hopper_tuning, report
heads, kv_heads, width, context, batch, queries = map(int, sys.argv[2:8])
case = Case(heads, kv_heads, width, context, batch, queries=queries, causal=sys.argv[8] == "causal")
report(case, hopper_tuning(width, batch * queries * heads))
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


SHORT_CONV = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from voxlane.engine.kernels.conv import short_conv_triton as module

def make(kernel, constants):
    floats = {"bcx": "*bf16", "out": "*bf16", "weight": "*fp32", "bias": "*fp32", "vectors": "*fp32"}
    numbers = ("rows", "table_stride", "block_tokens", "slot_count")
    kinds = {
        name: "constexpr" if name in constants else floats.get(name, "i32" if name in numbers else "*i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=places)
    made = compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_warps": 4})
    print(kernel.__name__, len(made.asm["cubin"]))

for single in (True, False):
    sizes = {"CHANNELS": 1536, "BLOCK": 1024, "TAPS": 3, "ROWS": 1 if single else 512}
    make(module._conv_kernel, sizes | {"SINGLE": single, "bias": None})
make(module._conv_kernel, {"CHANNELS": 2048, "BLOCK": 1024, "TAPS": 3, "ROWS": 512, "SINGLE": False})
make(module._store_kernel, {"CHANNELS": 2048, "BLOCK": 1024, "ROWS": 512})
"""


@pytest.mark.parametrize("capability", ["80", "90"])
def test_a_short_convolution_compiles(capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SHORT_CONV, capability]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert said.count("_conv_kernel") == 3, said
    assert said.count("_store_kernel") == 1, said


EXPERTS = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from voxlane.engine.kernels.linear import experts_triton as module

kernel = module._expert_kernel
for tile in (module.FEW, module.MANY):
    for tokens in (True, False):
        constants = dict(zip(("ROWS", "COLUMNS", "DEPTH"), tile), CHOSEN=4, TOKENS=tokens, EXPERTS=32, PRECISION="ieee")
        constants |= {"shares": None} if tokens else {}
        kinds = {"x": "*bf16", "weight": "*bf16", "out": "*bf16" if tokens else "*fp32", "shares": "*fp32"}
        kinds |= {"order": "*i32", "counts": "*i32"}
        signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in kernel.arg_names}
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places)
        options = {"num_warps": tile[3], "num_stages": 3}
        made = compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options)
        print(kernel.__name__, len(made.asm["cubin"]))
"""


@pytest.mark.parametrize("capability", ["80", "90"])
def test_products_of_experts_compile(capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", EXPERTS, capability]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert said.count("_expert_kernel") == 4, said
