"""Trains the network that hears how a voice ends (codecs/prosody.npz); measures it on sentences that it has not seen.

Kokoro's voices, without those of the ears' corpus, say the sentences of `partner_dialogues/`, single and joined. A clip
that stops at its end is an example of a finished sentence, a clip that stops after an inner word of an unfinished one.
Every clip is varied: noise, rooms, telephone lines, and the place where an ear would notice the end.

    python benchmarks/training/prosody_tune.py --sentences 1500

Time: 7 minutes on 16 cores, most of it for speaking; the training itself takes seconds on a GPU and minutes on a CPU.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from voxlane.codecs import prosody
from voxlane.engine.models import kokoro
from voxlane.engine.models.kokoro import Kokoro
from voxlane.engine.weights import store

BENCHMARKS = Path(__file__).parent.parent
sys.path.append(str(BENCHMARKS))

from support.command_line import command_line  # noqa: E402
from support.ears.corpus import RATE, VOICES, Sound, at_level, resample, room, telephone, white  # noqa: E402

DIALOGUES = Path(__file__).parent / "partner_dialogues"
WEIGHTS = BENCHMARKS.parent / "codecs" / "prosody.npz"
SPEAKERS = tuple(voice for voice in kokoro.VOICES if voice[0] in "ab" and voice not in VOICES)
JOINTS = (", and ", ", but ", " because ", ", so ", " although ", ", which means ", " while ", " unless ", " when ")
QUESTIONS = frozenset(
    ("what", "where", "who", "how", "why", "when", "which", "is", "are", "do", "does", "can", "could", "would", "did")
)
CUTS = 3  # inner words at which each sentence is cut
WHOLE_VARIANTS, CUT_VARIANTS = 6, 3  # clips made of each end
CHANNELS, HIDDEN, WIDTH, DROPOUT = (32, 48, 48), 48, 5, 0.4
EPOCHS, BATCH = 30, 256
HELD_OUT = 10  # every tenth sentence is for the test


def sentences(count: int, chance: random.Random) -> list[str]:
    """Return so many sentences: single turns, and statements that are joined."""
    found: set[str] = set()
    for path in sorted(DIALOGUES.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            found |= {turn[1] for turn in json.loads(line)["turns"] if 2 <= len(turn[1].split()) <= 22}
    single = sorted(found)
    plain = [text for text in single if text.split()[0].lower() not in QUESTIONS and not text.endswith("?")]
    joined = [
        one.rstrip(".?!") + chance.choice(JOINTS) + other[0].lower() + other[1:]
        for one, other in (chance.sample(plain, 2) for _ in range(count // 4))
    ]
    return [_written(text) for text in [*chance.sample(single, count - len(joined)), *joined]]


def _written(text: str) -> str:
    """Return a sentence with a capital and its last mark: the voice reads both."""
    mark = "" if text[-1] in ".?!" else "?" if text.split()[0].lower() in QUESTIONS else "."
    return text[0].upper() + text[1:] + mark


def varied(sound: Sound, seed: int) -> Sound:
    """Return a clip that stops, in a room or on a line, with noise, and ends where an ear might have noticed."""
    chance = np.random.default_rng(seed)
    after_s = prosody.AFTER_S + chance.uniform(-0.04, 0.12)
    clip = np.concatenate([sound, np.zeros(RATE // 5, np.float32)])
    if chance.random() < 0.3:
        clip = room(clip, seed, chance.uniform(0.15, 0.6), chance.uniform(0.8, 2.5))
    if chance.random() < 0.3:
        clip = telephone(clip)
    noise = white(len(clip) / RATE + 0.1, seed)[: len(clip)]
    if chance.random() < 0.5:
        noise = np.cumsum(noise) - np.convolve(np.cumsum(noise), np.ones(400) / 400, "same")
    clip = at_level(clip, -25.0) + at_level(noise.astype(np.float32), -25.0 - chance.uniform(8, 45))
    return clip[: len(sound) + round(after_s * RATE)].astype(np.float32)


def voice_end(sound: Sound) -> int:
    """Return the sample at which the last audible 10 ms end."""
    frames = sound[: len(sound) // 160 * 160].reshape(-1, 160)
    power = (frames**2).mean(axis=1)
    return 160 * (int(np.flatnonzero(power > power.max() * 10**-3.2)[-1]) + 1)


_MODEL: list[Kokoro] = []


def examples(task: tuple[int, str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the features of one sentence's clips, and which of them are finished."""
    number, text = task
    if not _MODEL:
        _MODEL.append(Kokoro(Path(store.resolve("kokoro-82m"))))
    chance, voice = random.Random(number), SPEAKERS[number % len(SPEAKERS)]
    spoken = _MODEL[0].synthesise(
        _MODEL[0].prepare(text, voice=voice), voice=voice, speed=round(chance.uniform(0.85, 1.2), 2)
    )
    sound = resample(spoken.samples, Kokoro.sample_rate, RATE)
    inner = [word.end_sample * RATE // Kokoro.sample_rate for word in spoken.words[:-1]]
    inner = [end for end in inner if end > 0.3 * RATE]
    stops = [(len(sound), 1.0, WHOLE_VARIANTS)]
    stops += [(end, 0.0, CUT_VARIANTS) for end in chance.sample(inner, min(CUTS, len(inner)))]
    made, finished = [], []
    for stop, complete, variants in stops:
        clip = sound[:stop].copy()
        clip = clip[: voice_end(clip)]
        clip[-160:] *= np.linspace(1, 0, 160, dtype=np.float32)
        for variant in range(variants):
            made.append(prosody.features(varied(clip, 1000 * number + 100 * int(complete) + variant)))
            finished.append(complete)
    return np.stack(made), np.array(finished, np.float32)


class Network(nn.Module):
    """The network of codecs/prosody.py."""

    def __init__(self) -> None:
        super().__init__()
        widths = (prosody.FEATURES, *CHANNELS)
        self.layers = [nn.Conv1d(a, b, WIDTH, 2, WIDTH // 2) for a, b in itertools.pairwise(widths)]
        self.convolutions = nn.ModuleList(self.layers)
        frames = prosody.FRAMES
        for _ in CHANNELS:
            frames = -(-frames // 2)
        self.hidden, self.output = nn.Linear(frames * CHANNELS[-1], HIDDEN), nn.Linear(HIDDEN, 1)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, clips: Tensor) -> Tensor:
        """Return the log-odds [clips] of features [clips, frames, features]."""
        state = clips.transpose(1, 2)
        for number, layer in enumerate(self.layers):
            state = torch.relu(layer(state))
            state = self.dropout(state) if number else state
        flat = state.transpose(1, 2).flatten(1)
        result: Tensor = self.output(self.dropout(torch.relu(self.hidden(flat))))[:, 0]
        return result

    def arrays(self) -> dict[str, NDArray[np.float16]]:
        """Return the weights as codecs/prosody.py reads them."""
        named: dict[str, Tensor] = {}
        for number, layer in enumerate(self.layers):
            assert layer.bias is not None
            named |= {f"weight{number}": layer.weight.permute(0, 2, 1), f"bias{number}": layer.bias}
        named |= {"weight3": self.hidden.weight, "bias3": self.hidden.bias}
        named |= {"weight4": self.output.weight[0], "bias4": self.output.bias[0]}
        return {name: value.detach().cpu().numpy().astype(np.float16) for name, value in named.items()}


def train(clips: Tensor, finished: Tensor) -> Network:
    """Return a trained network."""
    torch.manual_seed(1)
    network = Network().to(clips.device)
    steps = max(1, len(clips) // BATCH * EPOCHS)
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps + 1)
    for _ in range(steps):
        chosen = torch.randint(len(clips), (BATCH,), device=clips.device)
        batch, wanted = clips[chosen], finished[chosen]
        band = int(torch.randint(18, ()))
        batch[: BATCH // 2, :, band : band + 2] = 0  # no two bands may decide alone
        loss = nn.functional.binary_cross_entropy_with_logits(network(batch), wanted * 0.96 + 0.02)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return network.eval()


def main() -> None:
    """Make the examples, train, test, and write the weights."""
    parser = command_line(__doc__)
    parser.add_argument("--sentences", type=int, default=1500, help="sentences to speak (default: 1500)")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go (default: codecs/prosody.npz)")
    options = parser.parse_args()
    tasks = list(enumerate(sentences(options.sentences, random.Random(7))))
    made = []
    with multiprocessing.get_context("spawn").Pool() as pool:
        for done, one in enumerate(pool.imap(examples, tasks, chunksize=4), 1):
            made.append(one)
            if done % 100 == 0:
                print(f"  {done} of {len(tasks)} sentences", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = [[pair for number, pair in enumerate(made) if (number % HELD_OUT == 0) is test] for test in (False, True)]
    (clips, finished), (test_clips, test_finished) = (
        (
            torch.from_numpy(np.concatenate([pair[0] for pair in part])).to(device),
            torch.from_numpy(np.concatenate([pair[1] for pair in part])).to(device),
        )
        for part in parts
    )
    network = train(clips, finished)
    with torch.no_grad():
        odds = network(test_clips)
    whole, cut = odds[test_finished > 0.5], odds[test_finished < 0.5]
    area = float((whole[:, None] > cut[None]).float().mean())
    late = float((cut > whole.quantile(0.05)).float().mean())
    print(f"{len(clips)} clips; of {len(odds)} others: area under the curve {area:.3f};", end=" ")
    print(f"where 95 % of the finished ones pass, {100 * late:.0f} % of the others do")
    np.savez(options.out, allow_pickle=False, **network.arrays())


if __name__ == "__main__":
    main()
