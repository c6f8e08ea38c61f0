"""Qwen3-TTS against the package qwen-tts, in float32, on small random checkpoints that the package itself saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from qwen3_tts_cases import CASES, CONFIGS, FORCED_FRAMES, MAX_FRAMES, Answers, Case
from qwen3_tts_stage import GREEDY, Stage, open_case
from qwen_tts_peer import QwenTtsPeer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from voxlane.engine.errors import TensorError
from voxlane.engine.kernels import native
from voxlane.engine.kernels.sampling import code_choice
from voxlane.engine.kernels.sampling.sampling import gumbel_ref
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.qwen3_tts import choice
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import Utterance
from voxlane.engine.weights.files import open_weights

CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # float32; logits here spread by 1.5. Seen: 9e-6
LIVELY = SpeechSampling(temperature=0.9, top_k=20, inner_temperature=0.9, inner_top_k=20)


@pytest.fixture(scope="module")
def answers(qwen_tts_peer: QwenTtsPeer, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(qwen_tts_peer, tmp_path_factory.mktemp("qwen3_tts"))


@pytest.fixture(scope="module")
def models(answers: Answers) -> dict[str, Qwen3TTS]:
    return {name: Qwen3TTS.load(open_weights(answers.folder / name), "float32") for name in CONFIGS}


def whole(model: Qwen3TTS, case: Case, answers: Answers) -> Utterance:
    utterance = open_case(model, case, answers)
    utterance.append(case.text)
    utterance.end()
    return utterance


def forced(stage: Stage, case: Case, answers: Answers) -> tuple[Tensor, Tensor]:
    """Return the hidden rows and the predictor's logits of a case whose frames are given."""
    part = stage.enter(whole(stage.model, case, answers))
    stage.step([part])
    frames = answers.given[f"{case.name}.forced"]
    for frame in frames.tolist():
        part.utterance.add(frame)
        stage.step([part])
    hidden = torch.stack(part.hidden[-FORCED_FRAMES - 1 :])
    inner: list[Tensor] = []

    def choose(logits: Tensor, group: int) -> Tensor:
        inner.append(logits)
        return frames[: len(logits), group]

    stage.scratch = stage.model.predictor.scratch(FORCED_FRAMES)
    stage.model.predictor.unroll(hidden[:-1], frames[:, 0], choose, stage.scratch)
    return hidden, torch.stack(inner, dim=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_the_package(models: dict[str, Qwen3TTS], answers: Answers, case: Case) -> None:
    model, wanted = models[case.checkpoint], answers.of[case.name]
    hidden, inner = forced(Stage(model), case, answers)
    assert wanted["logits"].std() > 1  # a dead model would agree with anything
    assert wanted["inner_logits"].std() > 1
    torch.testing.assert_close(hidden, wanted["hidden"], **CLOSE)
    torch.testing.assert_close(model.logits(hidden), wanted["logits"], **CLOSE)
    torch.testing.assert_close(inner, wanted["inner_logits"], **CLOSE)


@pytest.mark.parametrize("checkpoint", CONFIGS)
def test_frames_equal_the_package(models: dict[str, Qwen3TTS], answers: Answers, checkpoint: str) -> None:
    """All requests of a checkpoint in one batch here; each in a generate of its own there."""
    model = models[checkpoint]
    cases = [case for case in CASES if case.checkpoint == checkpoint]
    stage = Stage(model)
    parts = [
        stage.enter(whole(model, case, answers), replace(GREEDY, repetition_penalty=case.repetition_penalty))
        for case in cases
    ]
    assert not stage.speak(parts, MAX_FRAMES)
    for case, part in zip(cases, parts, strict=True):
        found = [list(frame) for frame in part.frames if frame[0] != model.end_code]
        assert found == answers.of[case.name]["frames"].tolist(), case.name


def test_the_package_ends_early_late_and_never(answers: Answers) -> None:
    """Else the test above would not see the rules about the end."""
    lengths = {len(answer["frames"]) for answer in answers.of.values()}
    assert {2, MAX_FRAMES} < lengths


def test_embeddings_equal_the_package(models: dict[str, Qwen3TTS], answers: Answers) -> None:
    for case in CASES:
        if case.clip:
            found = models["clones"].embed_voice(answers.given[case.clip])
            torch.testing.assert_close(found, answers.of[case.name]["embedding"], **CLOSE)
    with pytest.raises(ValueError, match="at least 1792"):
        models["clones"].embed_voice(torch.zeros(1791))
    with pytest.raises(ValueError, match="custom_voice"):
        models["voices"].embed_voice(torch.zeros(24_000))


def lively(stage: Stage, answers: Answers) -> list[tuple[Utterance, SpeechSampling, int]]:
    """Eight requests of every kind that one checkpoint has."""
    cases = [case for case in CASES if case.checkpoint == "clones"]
    samplings = [LIVELY, replace(LIVELY, inner_temperature=0.0), replace(LIVELY, top_p=0.8, inner_top_p=0.7)]
    return [
        (whole(stage.model, cases[index % len(cases)], answers), samplings[index % 3], 2**63 + 77 * index)
        for index in range(8)
    ]


def test_a_batch_is_each_alone(models: dict[str, Qwen3TTS], answers: Answers) -> None:
    stage = Stage(models["clones"])
    together = [stage.enter(*request) for request in lively(stage, answers)]
    stage.speak(together[:3], 2)  # the others come in while these speak
    stage.speak(together, 6, chunk=5)
    alone = [stage.enter(*request) for request in lively(stage, answers)]
    for part in alone:
        stage.speak([part], 6)
    assert [part.frames for part in together] == [part.frames for part in alone]
    assert len({tuple(part.frames) for part in alone}) == 8  # a request repeated with another seed says something else


def test_chunks_are_the_whole(models: dict[str, Qwen3TTS], answers: Answers) -> None:
    for case in CASES:
        stage = Stage(models[case.checkpoint])
        parts = [stage.enter(whole(stage.model, case, answers)) for _ in range(3)]
        for part, chunk in zip(parts, (1000, 1, 5), strict=True):
            stage.speak([part], 2, chunk)
        for part in parts[1:]:
            assert part.frames == parts[0].frames
            torch.testing.assert_close(torch.stack(part.hidden), torch.stack(parts[0].hidden), **CLOSE)


@pytest.mark.parametrize("name", ["clone", "clone whole", "imitation", "imitation, long clip"])
def test_text_in_pieces_is_text_at_once(models: dict[str, Qwen3TTS], answers: Answers, name: str) -> None:
    """It waits for text that has not come, and goes on as if it had always been there."""
    case = next(case for case in CASES if case.name == name)
    stage = Stage(models[case.checkpoint])
    at_once = stage.enter(whole(stage.model, case, answers), LIVELY, 5)
    stage.speak([at_once], 16)
    part = stage.enter(open_case(stage.model, case, answers), LIVELY, 5)
    waits = 0
    for token in case.text:
        waits += stage.speak([part], 16) == [part]
        part.utterance.append([token])
    waits += stage.speak([part], 16) == [part]
    part.utterance.end()
    assert waits == len(case.text) + 1
    stage.speak([part], 16)
    assert part.frames == at_once.frames


def test_rewound_is_never_gone_on(models: dict[str, Qwen3TTS], answers: Answers) -> None:
    case = CASES[2]
    stage = Stage(models["clones"])
    part = stage.enter(whole(stage.model, case, answers), replace(LIVELY, repetition_penalty=3.0), 9)
    stage.speak([part], 12)
    spoken, length, free = part.frames, part.table.length, stage.pool.free
    for frames in (7, 1):
        stage.rewind(part, frames)
        assert part.frames == spoken[:frames]
        assert stage.pool.free > free
        stage.speak([part], 12)
        assert (part.frames, part.table.length) == (spoken, length)
    part.table.free()
    stage.pool.check()
    assert stage.pool.free == 96


# Random weights amplify what is rounded. Measured here: bfloat16 weights 0.01, packed 0.05. Misplaced would be 1.
@pytest.mark.parametrize(("mode", "bound"), [("bfloat16", 0.05), ("packed", 0.15)])
@pytest.mark.parametrize("name", ["clone", "voice"])
def test_narrow_weights_cost_little(
    models: dict[str, Qwen3TTS], answers: Answers, mode: Mode, bound: float, name: str
) -> None:
    case = next(case for case in CASES if case.name == name)
    model = Qwen3TTS.load(open_weights(answers.folder / case.checkpoint), mode)
    assert model.parameters == models[case.checkpoint].parameters
    hidden, inner = forced(Stage(model), case, answers)
    wanted = answers.of[name]
    for found, exact in ((model.logits(hidden), wanted["logits"]), (inner, wanted["inner_logits"])):
        assert 0 < float((found - exact).square().mean().sqrt() / exact.std()) < bound


def test_rules_are_those_of_generate(models: dict[str, Qwen3TTS], answers: Answers) -> None:
    """Of transformers' own processors, in the order and with the numbers that the package gives them."""
    model, config = models["voices"], models["voices"].config
    utterance = whole(model, next(case for case in CASES if case.name == "voice"), answers)
    suppressed = [token for token in range(48, config.talker.vocab_size) if token != model.end_code]
    processors = [
        RepetitionPenaltyLogitsProcessor(1.7),
        MinNewTokensLengthLogitsProcessor(0, 2, model.end_code),
        SuppressTokensLogitsProcessor(suppressed),
    ]
    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        logits = torch.randn(1, config.talker.vocab_size, generator=generator)
        spoken = torch.tensor([[frame[0] for frame in utterance.frames]], dtype=torch.long)
        wanted = logits.clone()
        for processor in processors:
            wanted = processor(spoken, wanted)
        choices = Choices.of(config, [(utterance, replace(LIVELY, repetition_penalty=1.7), 0)])
        rules = choice.FirstCode(config).rules(choices)
        assert torch.equal(code_choice.restrict(logits, choices.first, rules), wanted)
        utterance.add(torch.randint(0, 48, (16,), generator=generator).tolist())


def test_a_draw_depends_on_seed_frame_and_group_alone(answers: Answers) -> None:
    """With heads that say nothing a frame is the noise of its place."""
    model = Qwen3TTS.load(open_weights(answers.folder / "voices"), "float32")
    for head in (model._head, *model.predictor._heads):
        assert isinstance(head, Tensor)
        head.zero_()
    stage, end = Stage(model), model.end_code
    utterance = whole(model, next(case for case in CASES if case.name == "voice"), answers)
    part = stage.enter(utterance, SpeechSampling(1.0, 0, 1.0, 1.05, 1.0, 0), seed := 2**64 - 3)
    sounds = list(range(48))
    for number in range(4):
        stage.answer(stage.step([part]))
        allowed = sounds if number < 2 else [*sounds, end]
        for group in range(16):
            noise = gumbel_ref(seed, number * 16 + group + 1, torch.arange(model.config.talker.vocab_size))
            tokens = allowed if group == 0 else sounds
            assert part.frames[-1][group] == max(tokens, key=lambda token: float(noise[token]))


class NoReads(TorchDispatchMode):
    """Fails where a number leaves the device or a shape depends on numbers: neither can be in a CUDA graph."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim"), f"{name} in a step"
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(native.load() is None, reason="the references of the kernels read what kernels do not")
def test_a_step_reads_nothing_back(
    models: dict[str, Qwen3TTS], answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From ids to a whole frame; only the draw itself is stood in for, since the CPU's reads its rules."""

    def likeliest(logits: Tensor, packet: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        tokens.copy_(logits.argmax(dim=1))

    stage = Stage(models["clones"])
    parts = [stage.enter(whole(stage.model, case, answers)) for case in CASES if case.checkpoint == "clones"]
    monkeypatch.setattr(code_choice, "sample", likeliest)
    stage.speak(parts, 1)
    choices = Choices.of(stage.model.config, [(part.utterance, part.sampling, 0) for part in parts])
    inputs = stage.model.inputs([(part.utterance, part.table.length, part.utterance.available) for part in parts])
    layout = stage.layout_of_next(parts)
    with NoReads():
        hidden = stage.model.forward(inputs, layout, stage.cache.pages)
        frames = stage.model.frames(hidden, choices, stage.scratch)
    monkeypatch.undo()
    stage.speak(parts, 2)
    assert [tuple(frame) for frame in frames.tolist()] == [part.frames[1] for part in parts]
    assert choices.seen.sum(dim=1).tolist() == [len({frame[0] for frame in part.frames}) for part in parts]


def test_a_foreign_tensor_is_refused(answers: Answers) -> None:
    weights = open_weights(answers.folder / "voices")
    kept = weights.names()
    weights.names = lambda: [*kept, "speaker_encoder.fc.bias"]  # type: ignore[method-assign]
    Qwen3TTS.load(weights, "float32")  # left over from a base checkpoint
    weights.names = lambda: [*kept, "talker.lm_head.weight"]  # type: ignore[method-assign]
    with pytest.raises(TensorError, match=r"talker\.lm_head\.weight"):
        Qwen3TTS.load(weights, "float32")
