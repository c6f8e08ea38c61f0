"""Which models speak, and what a text may ask of each."""

from __future__ import annotations

from msgspec import structs

from voxlane.engine.api import ConverseModel, Ready
from voxlane.server.audio.speakers import Speaker, speaker_named, speakers_of

SILENT = Ready("", "", 0, 0, "", "", 0, 0, 0, "cpu")
VOICE = structs.replace(SILENT, tts_model="models/kokoro.gguf", voices=("af_alloy",), speak_languages=("german",))
SPEECH = ConverseModel("hf:a/b", 4000, 12.5, 1920)


def test_the_voice_comes_first() -> None:
    voice, noise = speakers_of(structs.replace(VOICE, speech=SPEECH))
    assert voice == Speaker("kokoro", ("af_alloy",), ("german",))
    assert (noise.name, noise.voices, noise.answers_speech, noise.one_pace) == ("hf:a/b", (), True, True)
    for asked, found in ((None, voice), ("tts-1", voice), (["hf:a/b"], voice), ("hf:a/b", noise)):
        assert speaker_named(asked, (voice, noise)) is found


def test_the_only_model_that_speaks_is_meant_by_any_name() -> None:
    (noise,) = speakers_of(structs.replace(SILENT, speech=SPEECH))
    assert speaker_named("tts-1", (noise,)) is noise
    assert speakers_of(SILENT) == ()
    assert speaker_named("tts-1", ()) == Speaker("")
