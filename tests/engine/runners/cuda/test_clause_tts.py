"""The voice as it runs on a device, here on a CPU: against ONNX Runtime, against hibari's code, alone and together."""

from __future__ import annotations

import hibari.dsp
import numpy as np
import pytest
import torch
from hibari_float_graph import float_graph

from voxlane.engine.kernels.vocoder.vocoder import LEAST_HZ, TOP_HZ, pitch_curve
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.hibari import network as net
from voxlane.engine.models.hibari.model import FRAME_SAMPLES, Hibari
from voxlane.engine.models.hibari.noise import BINS, ClauseNoise, first_row
from voxlane.engine.models.hibari.sound import HOP, LAG, N_FFT, Sound
from voxlane.engine.models.synthesis import NOTHING, SynthesisedClause, finish, open_session
from voxlane.engine.runners.clause_tts import ClausePayload
from voxlane.engine.runners.cuda import clause_tts as cuda_voice
from voxlane.engine.runners.cuda.clause_tts import CudaClauseTTS
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

CPU = torch.device("cpu")
TEXTS = ("Yes.", "Take the second street on the left,", "and it costs $12.50 if you come before 10:30.")


@pytest.fixture(scope="module")
def model() -> Hibari:
    return Hibari(threads=1)


@pytest.fixture(scope="module")
def network(model: Hibari) -> net.HibariNetwork:
    return net.HibariNetwork(model.file(), CPU)


@pytest.fixture(scope="module")
def voice(model: Hibari) -> CudaClauseTTS:
    return CudaClauseTTS(model, CPU, places=(64, 128), beats=(64, 128, 256))


@pytest.fixture(scope="module")
def utterances(model: Hibari) -> list[net.NetworkClause]:
    paces = (1.0, 0.8, 1.3)
    return [net.NetworkClause(model.prepare(text).ids, pace, 2000) for text, pace in zip(TEXTS, paces, strict=True)]


@pytest.fixture(scope="module")
def line(network: net.HibariNetwork, utterances: list[net.NetworkClause]) -> tuple[list[int], np.ndarray, net.Frames]:
    """Return where each clause begins among the frames of a line, the beats of its places, and the frames."""
    places = np.zeros((net.ROWS, net.line_length(utterances) + 5), np.int32)
    begins = net.write_line(utterances, places)
    with torch.inference_mode():
        reading = network.read(torch.from_numpy(places))
        beats = reading.beats.numpy()
        frames = network.frames(torch.from_numpy(places), reading, int(beats.sum()) + 7)
    ends = np.cumsum(beats) * net.FRAMES_PER_BEAT
    counts = [beats[begin : begin + len(one.ids)] for begin, one in zip(begins, utterances, strict=True)]
    return [int(ends[begin - 1]) for begin in begins], counts, frames


@pytest.fixture(scope="module")
def run(model: Hibari):
    """Return what runs the file's graph with nothing rounded, on one clause."""
    path = model.file()
    session = open_session(float_graph(path), path, 1, "/Clip_output_0")
    return lambda ids, speed: session.run(
        None, {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
    )


def test_the_network_is_the_one_in_the_file(run, utterances, line):
    """A clause among others here, alone there."""
    for one, start, beats in zip(utterances, line[0], line[1], strict=True):
        *spectra, pitch_hz, expected = run(one.ids, one.speed)
        np.testing.assert_array_equal(beats, expected)
        own = slice(start, start + net.FRAMES_PER_BEAT * int(beats.sum()))
        np.testing.assert_allclose(line[2].spectra[own].numpy(), np.concatenate(spectra, axis=1)[0].T, atol=5e-4)
        np.testing.assert_allclose(line[2].pitch_hz[own].numpy(), pitch_hz[0], atol=2e-3)


def test_the_sound_is_hibaris(model, utterances, line):
    """But where the number of harmonics, 11,000 over the pitch, is so near a whole one that the last bit rounds it."""
    starts, counts, frames = line
    with torch.inference_mode():
        samples = Sound(torch.from_numpy(model.noise).T.contiguous(), CPU)(frames).flatten().numpy()
        share = torch.from_numpy(hibari.dsp._interp_w()[0])
        hertz = pitch_curve(frames.pitch_hz, frames.places, share).double().flatten()
    harmonics = TOP_HZ / hertz
    undecided = np.flatnonzero(((harmonics - harmonics.round()).abs() < 3e-5) & (hertz > LEAST_HZ))
    for one, start, beats in zip(utterances, starts, counts, strict=True):
        count = net.FRAMES_PER_BEAT * int(beats.sum())
        spectra = frames.spectra[start : start + count].numpy().T.reshape(5, BINS, count)
        noise = ClauseNoise(model.noise, one.noise_row)
        pitch_hz = frames.pitch_hz[start : start + count].numpy()
        expected = hibari.dsp.synth(*(np.ascontiguousarray(part) for part in spectra), pitch_hz, noise)
        place = (start + LAG) * HOP
        decided = np.ones(count * HOP, bool)
        for sample in undecided - start * HOP:
            if 0 <= sample < count * HOP:
                decided[max(sample - N_FFT, 0) : sample + N_FFT] = False
        assert decided.mean() > 0.5
        np.testing.assert_allclose(samples[place : place + count * HOP][decided], expected[decided], atol=2e-6)


def clause(model: Hibari, text: str, *, speed: float = 1.0, seed: int = 0) -> ClausePayload:
    return ClausePayload(model.prepare(text), model.default_voice, speed, seed)


def say(voice: CudaClauseTTS, *clauses: ClausePayload) -> list[SynthesisedClause]:
    table = BlockTable(BlockPool(0, 1, prefix_cache=False))
    requests = [
        Request(id=str(number), task="tts", tokens=[], prompt_tokens=0, table=table, model="tts", payload=one, unit=1)
        for number, one in enumerate(clauses)
    ]
    return [outcome.speech for outcome in voice.run(ModelBatch([Row(request, 0, 1) for request in requests]))]


def same(one: SynthesisedClause, other: SynthesisedClause) -> None:
    """Hold that two ways to say a clause differ by rounding alone."""
    assert one.words == other.words
    np.testing.assert_allclose(one.samples, other.samples, atol=2e-3)


def test_the_whole_way(model, voice, run):
    """What comes of a clause is what the file and hibari's own code make of it: samples, noise and words' times."""
    prepared = model.prepare(TEXTS[1])
    *spectra, pitch_hz, beats = run(prepared.ids, 0.9)
    samples = hibari.dsp.synth(*(part[0] for part in spectra), pitch_hz[0], ClauseNoise(model.noise, first_row(-7)))
    expected = finish(prepared, samples, beats, frame_samples=FRAME_SAMPLES, rate=model.sample_rate, speed=0.9)
    same(say(voice, ClausePayload(prepared, model.default_voice, 0.9, -7))[0], expected)
    other = say(voice, ClausePayload(prepared, model.default_voice, 0.9, -6))[0].samples
    assert np.abs(other - expected.samples).max() > 0.01


def test_words_are_heard_when_they_are_on_the_cpu(model, voice):
    """What the file's graph rounds may move a sound, but not by more than two beats and not the words."""
    for text in TEXTS:
        ours, theirs = say(voice, clause(model, text, seed=3))[0], model.synthesise(model.prepare(text), seed=3)
        assert [(word.source_start, word.source_end) for word in ours.words] == [
            (word.source_start, word.source_end) for word in theirs.words
        ]
        for word, other in zip(ours.words, theirs.words, strict=True):
            assert abs(word.start_sample - other.start_sample) <= 1200
            assert abs(word.end_sample - other.end_sample) <= 1200


def test_together_is_alone(model, voice):
    """Clauses at two paces, in more than one pass, and one that is silent."""
    clauses = [clause(model, text, speed=speed) for speed in (0.8, 1.7) for text in TEXTS[:2]]
    clauses.insert(2, ClausePayload(NOTHING, model.default_voice, 1.0, 0))
    together = say(voice, *clauses)
    assert len(together[2].samples) == 0
    assert len(voice._passes(clauses)) > 1
    for one, speech in zip(clauses, together, strict=True):
        same(speech, say(voice, one)[0])


def test_a_clause_longer_than_guessed(model, voice, monkeypatch):
    expected = say(voice, clause(model, TEXTS[2]))[0]
    assert len(expected.samples) > 64 * net.FRAMES_PER_BEAT * HOP, "else it fits"
    monkeypatch.setattr(cuda_voice, "guess_beats", lambda utterances: 10)
    same(say(voice, clause(model, TEXTS[2]))[0], expected)
    small = CudaClauseTTS(model, CPU, places=(64, 128), beats=(64,))  # and longer than there is room for
    same(say(small, clause(model, TEXTS[2]))[0], expected)


def test_a_voice_that_is_wrong_says_so(model, voice, monkeypatch):
    assert voice.check().good
    other = CudaClauseTTS(model, CPU, places=(64,), beats=(128,))
    network = other._speakers[model.default_voice]._network
    monkeypatch.setattr(network, "_sound_blocks", network._sound_blocks[:-1])
    assert not other.check().good
