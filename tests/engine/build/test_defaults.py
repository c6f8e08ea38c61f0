"""What the machine decides: the device, the numbers left at zero, the memory, and whether kernels may be trusted."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from examples import sweep

from voxlane.engine.api import EngineConfig
from voxlane.engine.build import device
from voxlane.engine.build.defaults import DEFAULTS, pages_of, settle, weights_of
from voxlane.engine.build.device import CONTEXT_BYTES, GpuMemory, choose_device, plan_cache
from voxlane.engine.errors import EngineConfigError
from voxlane.engine.kernels.norm import rms_norm
from voxlane.engine.kernels.selfcheck import agreement
from voxlane.engine.models.spec import AttentionLayer, ConvolutionLayer, ExpertSizes
from voxlane.engine.runners.cuda import selfcheck, selfcheck_converse
from voxlane.engine.runners.cuda.device import watched
from voxlane.engine.runners.cuda.selfcheck import KernelError, agreements, check_kernels
from voxlane.engine.runners.cuda.trial import STAND_IN, Trial

CPU = torch.device("cpu")
SMALL = replace(
    STAND_IN,
    layers=(AttentionLayer(heads=9, kv_heads=3, head_dim=4, scale=64**-0.5), ConvolutionLayer(channels=36, taps=3)),
    hidden_size=36,
    intermediate_size=64,
    vocab_size=100,
    experts=ExpertSizes(count=6, chosen=2, inner=20),
)


def trial(dtype: torch.dtype, pages: torch.dtype) -> Trial:
    return Trial(SMALL, dtype, pages, 4, CPU, ears=True, voice=True, dialogue=dtype is torch.float32)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_zeros_become_the_devices_numbers_and_others_stay(kind: str) -> None:
    told = settle(EngineConfig(max_batch=3, step_budget_ms=7.5), kind)
    assert (told.max_batch, told.step_budget_ms) == (3, 7.5)
    for key, value in DEFAULTS[kind].items():
        if key not in ("max_batch", "step_budget_ms"):
            assert getattr(told, key) == value > 0
    assert settle(told, kind) == told


def test_a_cpu_keeps_what_it_was_measured_with() -> None:
    told = settle(EngineConfig(), "cpu")
    assert (told.block_tokens, told.max_batch, told.max_step_tokens) == (16, 16, 512)
    assert (told.step_budget_ms, told.asr_memory_mib) == (60.0, 128)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_a_machine_without_a_device_is_told_so() -> None:
    with pytest.raises(EngineConfigError, match=r"engine\.device: torch sees no CUDA device"):
        choose_device(EngineConfig(device="cuda"))


def test_a_small_gpu_gives_less_to_speech() -> None:
    assert settle(EngineConfig(), "cuda", 8192).asr_memory_mib == 512
    assert settle(EngineConfig(), "cuda", 140_000).asr_memory_mib == 4096
    assert settle(EngineConfig(asr_memory_mib=900), "cuda", 8192).asr_memory_mib == 900


def test_weights_and_pages_suit_the_device() -> None:
    auto = EngineConfig()
    assert (weights_of(auto, "cpu"), pages_of(auto, "cpu")) == ("packed", "bfloat16")
    assert (weights_of(auto, "cuda"), pages_of(auto, "cuda")) == ("bfloat16", "bfloat16")
    assert pages_of(replace(auto, weights="float32"), "cuda") == "float32"
    assert pages_of(replace(auto, weights="float32", pages="int8"), "cuda") == "int8"
    with pytest.raises(EngineConfigError, match=r"engine\.weights: packed weights are for CPUs"):
        weights_of(replace(auto, weights="packed"), "cuda")


def test_a_device_is_taken_refused_or_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device(EngineConfig(device="cpu")) == CPU
    monkeypatch.setattr(device, "without_cuda", lambda: "there is none")
    assert choose_device(EngineConfig(device="auto")) == CPU
    with pytest.raises(EngineConfigError, match=r"engine\.device: there is none"):
        choose_device(EngineConfig(device="cuda"))
    monkeypatch.setattr(device, "without_cuda", lambda: "")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert choose_device(EngineConfig(device="auto")).type == "cuda"


def test_a_device_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert device.without_cuda() == "torch was built for another kind of GPU than CUDA's"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "An old one")
    assert device.without_cuda() == "An old one has compute capability 7.5, 8.0 is needed"


def test_the_cache_is_what_is_left_of_its_share() -> None:
    config = settle(EngineConfig(gpu_memory_share=0.5), "cuda")
    plan = plan_cache(config, STAND_IN, "bfloat16", 8 << 30)
    assert plan.block == 64 * 30 * 2 * 3 * 64 * 2
    assert 0 <= (4 << 30) - plan.step - plan.blocks * plan.block < plan.block
    assert plan.step < plan_cache(replace(config, max_step_tokens=1 << 16), STAND_IN, "bfloat16", 8 << 30).step
    assert plan_cache(config, STAND_IN, "bfloat16", 1 << 20).blocks == 0


def test_engines_on_one_gpu_have_equal_parts_of_its_memory() -> None:
    whole = GpuMemory(free=130 << 30, total=140 << 30)
    assert whole.part(1, own=9 << 30) is whole
    assert whole.part(2, own=9 << 30) == GpuMemory((70 << 30) - (9 << 30) - CONTEXT_BYTES, 70 << 30)
    assert GpuMemory(5 << 30, 140 << 30).part(2, own=9 << 30).free == 5 << 30, "no more than is free"
    assert whole.part(16, own=9 << 30).free == 0


def test_a_step_without_memory_is_a_fault_that_says_what_to_set() -> None:
    with (
        pytest.raises(RuntimeError, match=r"set engine\.gpu_memory_share or engine\.max_step_tokens lower"),
        watched(CPU),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("pages", sweep([torch.int8, torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("dtype", sweep([torch.bfloat16, torch.float32]))
def test_kernels_that_are_right_pass(dtype: torch.dtype, pages: torch.dtype) -> None:
    found = list(agreements(trial(dtype, pages)))
    assert [each.name for each in found if not each.good] == []
    assert len({each.name for each in found}) >= 14


@pytest.mark.parametrize("part", sweep(["random_mimi", "random_lfm2_audio"]))
def test_a_speech_to_speech_model_that_is_wrong_on_the_device_is_named(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's model, which is made first, has other numbers than the host's."""
    make, made = getattr(selfcheck_converse, part), []

    def make_other(*arguments: Any, **settings: Any) -> Any:
        made.append(part)
        with monkeypatch.context() as patch:
            if len(made) == 1:
                patch.setattr(zlib, "crc32", lambda name: len(name))
            return make(*arguments, **settings)

    monkeypatch.setattr(selfcheck_converse, part, make_other)
    with torch.inference_mode():
        found = [
            agreement(name, check(trial(torch.float32, torch.float32)))
            for name, check in selfcheck_converse.CHECKS.items()
        ]
    assert [each.good for each in found] == [part != "random_lfm2_audio", part != "random_mimi"]


def test_a_wrong_kernel_and_one_that_does_not_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rms_norm, "rms_norm", lambda x, weight, eps: rms_norm.rms_norm_ref(x, weight, eps) * 1.001)
    with pytest.raises(
        KernelError, match=r"kernel norms: is off by 1\..e-03, at most 1\.0e-04 is right; `voxlane doctor`"
    ):
        check_kernels(trial(torch.float32, torch.float32))

    def broken(*_: object) -> None:
        raise RuntimeError("no compiler\nwas found")

    monkeypatch.setattr(rms_norm, "rms_norm", broken)
    found = list(selfcheck.agreements(trial(torch.float32, torch.float32)))
    assert [(each.name, each.failure) for each in found] == [("norms", "no compiler was found")]
