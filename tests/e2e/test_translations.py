"""A multilingual Whisper in the real server: speech in other languages, written as it is said and in English."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from foreign_speech import SENTENCES, ForeignSentence, speak
from realtime_scenario import likeness
from voice_server import VoiceServer

from voxlane.engine.weights.store import present

MODEL = "whisper-base"

pytestmark = [
    pytest.mark.weights,
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),  # OpenAI's newer models do not translate
    pytest.mark.skipif(not present(MODEL), reason=f"{MODEL} is not here: voxlane models pull {MODEL}"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """A server that listens in 99 languages."""
    server = VoiceServer(tmp_path_factory.mktemp("server") / "log", "--asr-model", MODEL)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence.language)
def test_a_sentence_of_another_language(server: VoiceServer, sentence: ForeignSentence) -> None:
    file = ("speech.wav", speak(sentence))
    audio = server.client.audio
    heard = audio.transcriptions.create(model="whisper-1", file=file)
    assert likeness(heard.text, sentence.written) > 0.8, heard.text
    told = audio.transcriptions.create(model="whisper-1", file=file, language=sentence.language)
    assert likeness(told.text, sentence.written) > 0.8, told.text
    english = audio.translations.create(model="whisper-1", file=file)
    print(f"\n{heard.text} | {english.text}")
    words = set(re.findall(r"[a-z]+", english.text.lower()))
    assert sentence.english <= words, english.text
