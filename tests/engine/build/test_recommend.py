"""`voxlane models recommend`: what pretended machines are told, and that this one can be measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.api import EngineConfig
from voxlane.engine.build.recommend import MachineFacts, Recommendation, examine_machine, recommend, report
from voxlane.engine.errors import EngineConfigError
from voxlane.engine.models.registry import supported_architectures
from voxlane.engine.weights.catalog import CatalogError, load_catalog
from voxlane.engine.weights.hub_models import JOBS, ModelOffer, load_offers, parse_offers

GB = 10**9
TWO_CORES = MachineFacts("cpu", "two cores, 8 GB", 2, 6 * GB, 19e9, 15e9, cache_bytes=GB)
LAPTOP = MachineFacts("cpu", "a laptop of eight cores, 16 GB", 8, 12 * GB, 130e9, 80e9, cache_bytes=GB)
SMALL = MachineFacts("cpu", "one slow core, 2 GB", 1, GB, 2e9, 1.5e9, cache_bytes=GB)
GPU_24 = MachineFacts("cuda", "a GPU of 24 GB", 16, 24 * GB, 60e9, 50e9, copy_s=0.9e12)
H200 = MachineFacts("cuda", "NVIDIA H200", 16, 149 * GB, 60e9, 50e9, copy_s=4.0e12)

OFFERS = load_offers()
LFM2 = {"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2AudioForConditionalGeneration"}
TODAY = supported_architectures() - LFM2


def judged(machine: MachineFacts, supported: frozenset[str] = TODAY) -> list[Recommendation]:
    return recommend(machine, OFFERS, supported)


def chosen(machine: MachineFacts, supported: frozenset[str] = TODAY) -> dict[str, str]:
    return {one.offer.job: one.offer.name for one in judged(machine, supported) if one.recommended}


def test_two_cores_get_what_they_can_speak_with() -> None:
    assert chosen(TWO_CORES) == {
        "chat": "qwen2.5-coder-0.5b-instruct",
        "listening": "hf:UsefulSensors/moonshine-base",
        "voice": "hibari",
    }


def test_a_quick_laptop_gets_four_billion_weights() -> None:
    assert chosen(LAPTOP) == {
        "chat": "hf:unsloth/Qwen3-4B-Instruct-2507-GGUF#Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
        "listening": "hf:Qwen/Qwen3-ASR-0.6B",
        "voice": "kokoro-82m",
    }


def test_a_slow_small_machine_gets_the_quickest_models() -> None:
    assert chosen(SMALL) == {"chat": "smollm2-135m-instruct", "listening": "moonshine-tiny-en", "voice": "hibari"}


def test_a_gpu_of_24_gb_shares_it_among_the_three() -> None:
    assert chosen(GPU_24) == {
        "chat": "hf:Qwen/Qwen3-4B-Instruct-2507",
        "listening": "hf:openai/whisper-large-v3-turbo",
        "voice": "hf:Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    }


def test_an_h200_gets_the_largest() -> None:
    assert chosen(H200) == {
        "chat": "hf:Qwen/Qwen2.5-32B-Instruct",
        "listening": "hf:openai/whisper-large-v3-turbo",
        "voice": "hf:Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    }


def test_a_family_appears_when_the_registry_has_it() -> None:
    before = {one.offer.name for one in judged(H200)}
    after = {one.offer.name for one in judged(H200, TODAY | LFM2)}
    family = ("LFM2-1.2B", "LFM2-2.6B", "LFM2-8B-A1B", "LFM2-Audio-1.5B")
    assert after - before == {f"hf:LiquidAI/{name}" for name in family}
    assert chosen(H200, TODAY | LFM2)["speech-to-speech"] == "hf:LiquidAI/LFM2-Audio-1.5B"
    assert {one.offer.architecture for one in judged(H200, frozenset({"hibari"}))} == {"hibari"}


def test_a_mixture_of_experts_takes_much_memory_and_little_time() -> None:
    machine = replace(LAPTOP, weights_s=60e9, weights_8_s=50e9)
    assert chosen(machine, TODAY | LFM2)["chat"] == "hf:LiquidAI/LFM2-8B-A1B"
    assert chosen(replace(machine, free_bytes=8 * GB), TODAY | LFM2)["chat"] != "hf:LiquidAI/LFM2-8B-A1B"


def test_no_row_names_an_architecture_that_no_registry_can_have() -> None:
    assert {offer.architecture for offer in OFFERS} - supported_architectures() <= LFM2


def test_a_gated_model_is_shown_and_not_chosen() -> None:
    rows = {one.offer.name: one for one in judged(replace(GPU_24, free_bytes=40 * GB))}
    gated = rows["hf:meta-llama/Llama-3.1-8B-Instruct"]
    assert gated.fits
    assert gated.quick
    assert not gated.recommended


def test_the_speeds_are_those_that_were_measured() -> None:
    """docs/measured.md: Moonshine takes 90 ms and hibari 59 on two cores, a step of 8B takes 5.8 ms on an H200."""
    on_cores = {one.offer.name: one.speed for one in judged(replace(TWO_CORES, weights_s=19.1e9))}
    assert on_cores["moonshine-tiny-en"] == pytest.approx(0.090, rel=0.1)
    assert on_cores["hibari"] == pytest.approx(0.059, rel=0.1)
    assert on_cores["qwen2.5-coder-0.5b-instruct"] == pytest.approx(24.5, rel=0.25)
    on_gpu = {one.offer.name: one.speed for one in judged(H200)}
    assert on_gpu["hf:meta-llama/Llama-3.1-8B-Instruct"] == pytest.approx(1 / 0.0058, rel=0.2)


@given(
    st.sampled_from([TWO_CORES, LAPTOP, GPU_24, H200]),
    st.integers(10**8, 10**12),
    st.floats(1e8, 1e13),
    st.floats(1e10, 1e13),
)
def test_every_machine_gets_one_model_for_each_of_the_three_jobs(
    like: MachineFacts, free: int, weights_s: float, copy_s: float
) -> None:
    machine = replace(like, free_bytes=free, weights_s=weights_s, weights_8_s=weights_s, copy_s=copy_s)
    found = judged(machine)
    picks = [one for one in found if one.recommended]
    assert sorted(one.offer.job for one in picks) == ["chat", "listening", "voice"]
    for pick in picks:
        better = [one for one in found if one.offer.job == pick.offer.job and one.quick and one.fits]
        if any(not one.offer.gated for one in better):
            assert pick.quick
            assert pick.fits


def test_every_model_for_speech_has_a_speed_where_it_runs() -> None:
    assert all(one.speed > 0 for machine in (TWO_CORES, GPU_24) for one in judged(machine, TODAY | LFM2))


def test_names_sizes_and_hashes_are_of_the_catalog_where_it_has_them() -> None:
    catalog = load_catalog()
    assert {offer.name for offer in OFFERS if offer.pinned} == catalog.keys() - {"hibari", "speech-samples"}
    assert all(offer.name in catalog or offer.name.startswith("hf:") for offer in OFFERS)
    assert {offer.job for offer in OFFERS} == set(JOBS)


@pytest.mark.parametrize("offer", [one for one in OFFERS if one.name.startswith("hf:")], ids=lambda one: str(one.name))
def test_a_download_has_the_bytes_of_its_weights(offer: ModelOffer) -> None:
    """A slip of the pen in a size or a count shows: codecs and untied heads come on top, packed files have scales."""
    share = offer.size / (offer.parameters * offer.bits / 8)
    assert 0.97 <= share <= (1.5 if offer.bits == 4 or offer.job == "voice" else 1.2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[x", "Expected"),
        ('["hf:a/b"]\njob = "chat"', "must have job, architecture, device, bits, note, licence, parameters, size_gb"),
        (
            '[hibari]\njob = "chat"\narchitecture = "a"\ndevice = "any"\nbits = 4\nnote = ""',
            "the catalog has it for tts, not for chat",
        ),
        ('[hibari]\njob = "song"\narchitecture = "a"\ndevice = "any"\nbits = 4\nnote = ""', "job is one of chat"),
        ('[hibari]\njob = "voice"\narchitecture = "a"\ndevice = "any"\nbits = "4"\nnote = ""', "bits: must be a int"),
    ],
)
def test_a_malformed_table_is_named(text: str, says: str) -> None:
    with pytest.raises(CatalogError, match=says):
        parse_offers(text, load_catalog())


def test_this_machine_can_be_measured() -> None:
    machine = examine_machine(EngineConfig(device="cpu"))
    assert machine.weights_s > 0
    assert machine.weights_8_s > 0
    told = report(machine, judged(machine))
    assert told["machine"]["cores"] >= 1
    assert {model["unit"] for model in told["models"] if model["job"] == "chat"} == {"tokens/s"}


def test_a_device_that_is_not_there_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(EngineConfigError, match=r"engine\.device"):
        examine_machine(EngineConfig(device="cuda"))
