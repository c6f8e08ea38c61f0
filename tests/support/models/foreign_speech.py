"""Speech in languages that no default voice has: Kokoro's foreign voices, given the phonemes of a sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

import hibari

from voxlane.codecs.wav import encode_wav
from voxlane.engine.models.kokoro import Kokoro
from voxlane.engine.models.synthesis import Prepared, WordPlace
from voxlane.engine.weights.store import resolve

PAD = 0


@dataclass(frozen=True, slots=True)
class ForeignSentence:
    """A sentence, as it is written and as it sounds.

    Small models translate few sentences steadily: whisper-base does these with noise 60 dB below the sound, too.
    """

    language: str  # its code
    written: str
    phonemes: str
    voice: str
    english: frozenset[str]  # words that every translation has


SENTENCES = (
    ForeignSentence(
        "es",
        "Buenos días. Mi gato duerme en la cama, y mi perro bebe agua en la cocina.",
        "buˈenos dˈias. mi ɡˈato dwˈerme en la kˈama, i mi pˈero bˈeβe ˈaɣwa en la koθˈina.",
        "ef_dora",
        frozenset({"my", "cat", "sleeps", "bed", "water", "kitchen"}),
    ),
    ForeignSentence(
        "fr",
        "Mon frère travaille dans une grande école, et ma sœur écrit des livres.",
        "mɔ̃ fʁˈɛʁ tʁavˈaj dɑ̃z yn ɡʁˈɑ̃d ekˈɔl, e ma sˈœʁ ekʁˈi de lˈivʁ.",
        "ff_siwis",
        frozenset({"my", "brother", "works", "school", "sister", "books"}),
    ),
    ForeignSentence(
        "it",
        "Buongiorno. Il mio gatto dorme sul letto e il mio cane beve l'acqua in cucina.",
        "bwˈɔn dʒˈorno. il mˈio ɡˈatto dˈorme sul lˈɛtto e il mˈio kˈane bˈeve lˈakkwa in kutʃˈina.",
        "if_sara",
        frozenset({"my", "cat", "sleeps", "bed", "water", "kitchen"}),
    ),
)


def speak(sentence: ForeignSentence) -> bytes:
    """Return the sentence as a WAV file."""
    numbers: dict[str, int] = json.loads(resources.files(hibari).joinpath("assets", "vocab.json").read_text("utf-8"))
    ids = [numbers[phoneme] for phoneme in sentence.phonemes]
    whole = WordPlace(0, len(sentence.written), 1, len(ids))
    voice = Kokoro(resolve("kokoro-82m"))
    said = voice.synthesise(Prepared((PAD, *ids, PAD), (whole,), 0.3), voice=sentence.voice)
    return encode_wav(said.samples, voice.sample_rate)
