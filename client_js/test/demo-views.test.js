import assert from "node:assert/strict";
import { test } from "node:test";

import { noteOf } from "../demo/captions.js";
import { choicesOf } from "../demo/devices.js";
import { textsOf } from "../demo/figures.js";
import { focusOf, meaningOf } from "../demo/keys.js";
import { scale, segments, totalMs } from "../demo/latency.js";
import { clock, describe } from "../demo/log.js";
import { ease, percent } from "../demo/meters.js";
import { canInterrupt, linkOf, moodOf, recordedWords, wordsOf } from "../demo/mood.js";
import { outline } from "../demo/orb.js";
import { changesOf, configFor, offersOf, valuesOf, voiceName } from "../demo/settings.js";
import { NO_FIGURES } from "../events.js";

const OPEN = { muted: false, listening: true, pushToTalk: false, pressed: false };

function moment(values = {}) {
  return {
    status: "open", state: "listening", begun: true, starting: false, asking: false, sinceInterruptionMs: Infinity,
    microphone: OPEN, keys: true, ...values,
  };
}

test("the page has one mood at a time", () => {
  const moods = [
    [{ status: "idle", begun: false }, "idle"],
    [{ status: "idle", begun: false, starting: true }, "connecting"],
    [{ status: "connecting", begun: false, starting: true }, "connecting"],
    [{ status: "closed", begun: false }, "idle"],
    [{ status: "closed" }, "over"],
    [{ status: "waiting", state: "speaking" }, "connecting"],
    [{ asking: true }, "connecting"],
    [{ state: "held" }, "held"],
    [{ state: "hearing", sinceInterruptionMs: 100 }, "interrupted"],
    [{ state: "hearing", sinceInterruptionMs: 5000 }, "hearing"],
    [{ state: "thinking", sinceInterruptionMs: 100 }, "thinking"],
  ];
  for (const [values, mood] of moods) assert.equal(moodOf(moment(values)), mood, JSON.stringify(values));
});

test("the words say what to do", () => {
  assert.equal(wordsOf(moment()), "Listening");
  assert.match(wordsOf(moment({ microphone: { ...OPEN, muted: true } })), /not heard/);
  assert.match(wordsOf(moment({ microphone: { ...OPEN, listening: false } })), /Type/);
  assert.match(wordsOf(moment({ microphone: { ...OPEN, pushToTalk: true } })), /Hold space/);
  assert.equal(wordsOf(moment({ microphone: { ...OPEN, pushToTalk: true }, keys: false })), "Hold the button to talk");
  const held = { ...OPEN, pushToTalk: true, pressed: true };
  assert.equal(wordsOf(moment({ microphone: held })), "Listening");
  assert.equal(wordsOf(moment({ microphone: held, state: "hearing" })), "Hearing you");
  for (const state of ["listening", "hearing"]) {
    assert.match(wordsOf(moment({ microphone: { ...held, muted: true }, state })), /not heard/);
  }
  assert.equal(wordsOf(moment({ microphone: { ...OPEN, muted: true }, state: "speaking" })), "Speaking");
  assert.match(wordsOf(moment({ asking: true })), /allow the microphone/);
  assert.match(wordsOf(moment({ status: "waiting" })), /again/);
  assert.equal(wordsOf(moment({ status: "connecting", begun: false, starting: true })), "Connecting…");
  assert.equal(linkOf(moment()).link, "on");
  assert.equal(linkOf(moment({ status: "waiting" })).link, "trying");
  assert.equal(linkOf(moment({ status: "closed" })).link, "off");
});

test("there is something to interrupt while the assistant thinks or speaks, on a lost line too", () => {
  for (const state of ["thinking", "speaking", "held"]) {
    assert.equal(canInterrupt(moment({ state })), true);
    assert.equal(canInterrupt(moment({ state, status: "waiting" })), true);
    assert.equal(canInterrupt(moment({ state, status: "closed" })), false);
  }
  for (const state of ["listening", "hearing"]) assert.equal(canInterrupt(moment({ state })), false);
});

const LATENCY = {
  turn: 3, turn_end_ms: 410, words_ms: 563, first_token_ms: 539, first_sample_ms: 790, first_frame_ms: 791,
  heard_ms: 842,
};

test("a latency bar shows what happened in its order, and its segments fill its whole", () => {
  const parts = segments(LATENCY);
  assert.deepEqual(parts.map(({ part }) => part), ["turn_end", "first_token", "words", "first_sample", "played"]);
  assert.deepEqual(parts.map(({ lastsMs }) => lastsMs), [410, 129, 24, 227, 52]);
  assert.equal(totalMs(LATENCY), 842);
  const halves = { ...LATENCY, turn_end_ms: 10.4, first_token_ms: 20.8, words_ms: 31.2, first_sample_ms: 41.6 };
  assert.deepEqual(segments(halves).map(({ lastsMs }) => lastsMs), [10, 11, 10, 11, 800]); // which add up
});

test("what did not happen has no segment, and quick turns look quick", () => {
  const typed = { ...LATENCY, turn_end_ms: -1, words_ms: -1, first_token_ms: 100, first_sample_ms: 250, heard_ms: -1 };
  assert.deepEqual(segments(typed).map(({ part }) => part), ["first_token", "first_sample"]);
  assert.equal(totalMs(typed), 250);
  assert.ok(scale([typed]) > 250);
  assert.equal(scale([typed, { ...LATENCY, heard_ms: 2000 }]), 2000);
});

test("meters go by decibels, rise at once and fall slowly", () => {
  assert.equal(percent(0), 0);
  assert.equal(percent(NaN), 0);
  assert.equal(percent(1), 100);
  assert.equal(percent(10 ** (-54 / 20)), 0);
  assert.ok(percent(0.1) > percent(0.01) && percent(0.01) > 0);
  assert.equal(ease(10, 80), 80);
  const falling = ease(80, 0);
  assert.ok(falling < 80 && falling > 40);
  assert.equal(ease(0.4, 0), 0);
});

test("the orb stays within its swell, and is a circle without one", () => {
  for (const [x, y] of outline(100, 0, 7)) assert.ok(Math.abs(Math.hypot(x, y) - 100) < 1e-9);
  for (const [x, y] of outline(100, 0.1, 3.3)) assert.ok(Math.abs(Math.hypot(x, y) - 100) <= 10 + 1e-9);
});

test("a line's note says what became of it", () => {
  assert.equal(noteOf({ role: "assistant", status: "done", unheard: "" }), "");
  assert.match(noteOf({ role: "assistant", status: "interrupted", unheard: " more" }), /grey/);
  assert.equal(noteOf({ role: "assistant", status: "interrupted", unheard: " " }), "interrupted");
  assert.notEqual(noteOf({ role: "user", status: "failed", unheard: "" }), "");
});

test("the log tells messages but no sound and no token", () => {
  assert.equal(describe({ name: "audio", seq: 4, epoch: 1, offset: 0, data: new Uint8Array(2), words: [] }), null);
  assert.equal(describe({ name: "pong", seq: 4, mark: 1, audio_s: 1 }), null);
  const text = describe({ name: "reply_text", seq: 4, epoch: 1, text: 'Say "hi"' });
  assert.equal(text, 'reply_text epoch=1 text="Say \\"hi\\""');
  const started = describe({ name: "speech_started", seq: 4, turn: 2, at_s: 0.30999999 });
  assert.equal(started, "speech_started turn=2 at_s=0.31");
  const ready = { session: "voice-1", token: "secret", resumed: true, state: "listening" };
  assert.equal(describe({ name: "ready", seq: 1, ready }), "ready voice-1 · taken up again · listening");
  assert.ok(describe({ name: "reply_text", seq: 4, epoch: 1, text: "x".repeat(500) }).length < 300);
  assert.equal(clock(new Date(2026, 0, 2, 3, 4, 5, 6)), "03:04:05.006");
});

test("keys mean something where no text is written", () => {
  const pressed = {
    key: " ", repeat: false, modified: false, composing: false, focus: "free", pushToTalk: true,
  };
  assert.equal(meaningOf(pressed), "talk");
  assert.equal(meaningOf({ ...pressed, repeat: true }), "swallow");
  assert.equal(meaningOf({ ...pressed, pushToTalk: false }), null);
  assert.equal(meaningOf({ ...pressed, focus: "writing" }), null);
  assert.equal(meaningOf({ ...pressed, focus: "control" }), null, "a button's Space is its own");
  assert.equal(meaningOf({ ...pressed, key: "m" }), "mute");
  assert.equal(meaningOf({ ...pressed, key: "M" }), "mute");
  assert.equal(meaningOf({ ...pressed, key: "m", modified: true }), null);
  assert.equal(meaningOf({ ...pressed, key: "m", focus: "control" }), "mute");
  assert.equal(meaningOf({ ...pressed, key: "m", focus: "writing" }), null);
  assert.equal(meaningOf({ ...pressed, key: "Escape", focus: "writing" }), "interrupt");
  assert.equal(meaningOf({ ...pressed, key: "Escape", focus: "writing", composing: true }), null);
  assert.equal(meaningOf({ ...pressed, key: "Escape", repeat: true }), null);
  assert.equal(meaningOf({ ...pressed, key: "x" }), null);
  assert.equal(meaningOf({ ...pressed, key: "Enter" }), "begin");
  assert.equal(meaningOf({ ...pressed, key: "Enter", repeat: true }), null);
  for (const focus of ["writing", "control"]) assert.equal(meaningOf({ ...pressed, key: "Enter", focus }), null);
});

test("the focus says whose a key is", () => {
  assert.equal(focusOf(null), "free");
  assert.equal(focusOf({ tagName: "BODY" }), "free");
  assert.equal(focusOf({ tagName: "BUTTON", type: "button", id: "mute" }), "control");
  assert.equal(focusOf({ tagName: "BUTTON", type: "button", id: "hold" }), "free");
  assert.equal(focusOf({ tagName: "SUMMARY" }), "control");
  assert.equal(focusOf({ tagName: "A" }), "control");
  assert.equal(focusOf({ tagName: "INPUT", type: "checkbox" }), "control");
  assert.equal(focusOf({ tagName: "INPUT", type: "range" }), "writing");
  assert.equal(focusOf({ tagName: "TEXTAREA" }), "writing");
  assert.equal(focusOf({ tagName: "SELECT" }), "writing");
  assert.equal(focusOf({ tagName: "DIV", isContentEditable: true }), "writing");
});

test("settings: the form holds what the server has, and only what differs is said", () => {
  const values = valuesOf({ instructions: "Be brief.", voice: "af_heart", speed: 1.2, turns: { eagerness: "high" } });
  const unsaid = { language: "", manner: "" };
  assert.deepEqual(values, { prompt: "Be brief.", voice: "af_heart", ...unsaid, speed: 1.2, eagerness: "high" });
  assert.deepEqual(valuesOf({}), { prompt: "", voice: "", ...unsaid, speed: 1, eagerness: "auto" });
  assert.deepEqual(changesOf(values, values), {});
  const others = { language: "german", manner: "Whisper." };
  assert.deepEqual(changesOf(values, { prompt: "", voice: "bm_lewis", ...others, speed: 1, eagerness: "low" }), {
    instructions: "", voice: "bm_lewis", voice_language: "german", voice_instructions: "Whisper.", speed: 1,
    turns: { eagerness: "low" },
  });
  const told = valuesOf({ voice_language: "german", voice_instructions: "Whisper." });
  assert.deepEqual([told.language, told.manner], ["german", "Whisper."]);
  assert.equal(voiceName("af_heart"), "Heart · American woman");
  assert.equal(voiceName("bm_lewis"), "Lewis · British man");
  assert.equal(voiceName("narrator"), "Narrator");
  assert.equal(voiceName("xf_who"), "Xf_who");
});

test("settings: what a server's voices cannot do is not offered", () => {
  assert.deepEqual(offersOf({}), { voices: [], languages: [], instructed: false, paced: true, own: false });
  const designed = { voices: ["designed"], voice_languages: ["english"], instructed: true, one_pace: true };
  const offers = { voices: ["designed"], languages: ["english"], instructed: true, paced: false, own: false };
  assert.deepEqual(offersOf(designed), offers);
  assert.equal(offersOf({ ...designed, speech_model: "both" }).own, true);
});

test("settings: a model with its own voice is asked for none, whatever another server was asked for", () => {
  const kept = { instructions: "Be brief.", voice: "bm_lewis", voice_language: "german", speed: 1.5 };
  assert.equal(configFor(kept, false), kept);
  assert.deepEqual(configFor(kept, true), {
    instructions: "Be brief.", voice: "", voice_language: "", voice_instructions: "", speed: 1, tools: [],
  });
});

test("devices: the default is the browser's choice, and what has no name gets a number", () => {
  const devices = [
    { kind: "audioinput", deviceId: "default", label: "Default" },
    { kind: "audioinput", deviceId: "a", label: "Headset" },
    { kind: "audioinput", deviceId: "b", label: "" },
    { kind: "audioinput", deviceId: "", label: "" },
    { kind: "audiooutput", deviceId: "c", label: "Speakers" },
  ];
  assert.deepEqual(choicesOf(devices, "audioinput"), [{ id: "a", label: "Headset" }, { id: "b", label: "Number 2" }]);
  assert.deepEqual(choicesOf(devices, "audiooutput"), [{ id: "c", label: "Speakers" }]);
});

test("figures as people read them", () => {
  assert.equal(textsOf(NO_FIGURES, null).rtt, "–");
  const formats = { input: { codec: "pcm16", rate: 16000 }, output: { codec: "opus", rate: 24000 } };
  const measured = { roundTripMs: 3.21, bufferMs: 812.4, underruns: 2, starvedMs: 60, droppedMs: 12_340 };
  assert.deepEqual(textsOf({ ...NO_FIGURES, ...measured }, formats), {
    rtt: "3.2 ms", buffer: "812 ms", target: "0 ms", underruns: "2 · 60 ms", dropped: "12.3 s",
    codec: "pcm16 16 kHz → opus 24 kHz",
  });
});

test("the header says what is recorded", () => {
  assert.equal(recordedWords([]), "");
  assert.equal(recordedWords(["audio"]), "Recorded");
  assert.equal(recordedWords(["transcript"]), "Words are kept");
  assert.equal(recordedWords(["audio", "transcript"]), "Recorded, with words");
});
