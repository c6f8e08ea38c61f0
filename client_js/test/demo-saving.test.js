import assert from "node:assert/strict";
import { test } from "node:test";

import { asJson, asSrt, asText } from "../demo/exports.js";
import { MOST_MS, RATE, Recording } from "../demo/recording.js";
import { Timeline } from "../demo/timeline.js";

const NOW = new Date(Date.UTC(2026, 4, 6, 7, 8));
const MODELS = { chat: "small", listening: "ears", voice: "mouth" };
const LINES = [
  { role: "user", status: "done", heard: "Hello", unheard: "", span: null },
  { role: "user", status: "done", heard: "Tell me\na story", unheard: "", span: { startMs: 61_000, endMs: 62_500 } },
  { role: "assistant", status: "interrupted", heard: "Once ", unheard: "upon a time", span: { startMs: 63_250, endMs: 63_300 } },
  { role: "assistant", status: "interrupted", heard: "", unheard: "Never said", span: { startMs: 64_000, endMs: 64_000 } },
];
const TALK = { lines: LINES, zeroMs: 60_000, models: MODELS, now: NOW };

const textOf = ({ parts }) => parts.join("");

test("a line's time begins with the voice, and ends with the line", () => {
  const timeline = new Timeline();
  const line = (id, role, status, heard) => ({ id, role, status, heard, unheard: "" });
  timeline.skip([line(1, "user", "done", "before")]);
  timeline.observe([line(1, "user", "done", "before"), line(2, "user", "live", "")], 1000);
  timeline.observe([line(2, "user", "live", "He"), line(3, "assistant", "live", "")], 2000);
  timeline.observe([line(2, "user", "done", "Hello"), line(3, "assistant", "live", "Hi")], 3000);
  timeline.observe([line(2, "user", "done", "Hello"), line(3, "assistant", "done", "Hi!")], 4000);
  assert.equal(timeline.of(1), null, "it was said before this page was there");
  assert.deepEqual(timeline.of(2), { startMs: 1000, endMs: 3000 });
  assert.deepEqual(timeline.of(3), { startMs: 3000, endMs: 4000 }, "from the first word that is heard");
  timeline.skip([line(2, "user", "done", "Hello")]);
  assert.deepEqual(timeline.of(2), { startMs: 1000, endMs: 3000 });
});

test("as text: who said what at which time, and what was not heard", () => {
  const file = asText(TALK);
  assert.equal(file.name, "voxlane-2026-05-06-0708.txt");
  const lines = textOf(file).split("\n");
  assert.match(lines[0], /2026-05-06 07:08 UTC/);
  assert.equal(lines[3], "You: Hello");
  assert.match(lines[4], /^\d\d:\d\d:01 {2}You: Tell me$/);
  assert.match(textOf(file), /Assistant: Once \[upon a time\]\n/);
});

test("as JSON: every line with its times", () => {
  const { saved, models, lines } = JSON.parse(textOf(asJson(TALK)));
  assert.equal(saved, NOW.toISOString());
  assert.deepEqual(models, MODELS);
  assert.equal(lines.length, LINES.length);
  assert.deepEqual([lines[0].start, lines[0].start_s], [null, null]);
  assert.deepEqual([lines[1].start, lines[1].start_s, lines[1].end_s], ["1970-01-01T00:01:01.000Z", 1, 2.5]);
});

test("as SRT: what was heard, counted from the recording's beginning", () => {
  assert.equal(textOf(asSrt(TALK)), [
    "1\n00:00:01,000 --> 00:00:02,500\nYou: Tell me a story\n",
    "2\n00:00:03,250 --> 00:00:03,750\nAssistant: Once\n\n",
  ].join("\n"));
  assert.equal(textOf(asSrt({ ...TALK, zeroMs: 70_000 })), "", "an earlier conversation's lines are not of this recording");
  const late = { ...LINES[1], span: { startMs: 3_661_001, endMs: 3_663_000 } };
  assert.match(textOf(asSrt({ ...TALK, lines: [late], zeroMs: 0 })), /^1\n01:01:01,001 --> 01:01:03,000\n/);
});

/** Return a WAV file's head, and its sides. */
function read(parts) {
  const bytes = Buffer.concat(parts);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const data = view.getUint32(40, true);
  assert.equal(bytes.length, 44 + data);
  assert.equal(view.getUint32(4, true), 36 + data);
  assert.equal(bytes.toString("latin1", 0, 4) + bytes.toString("latin1", 8, 16), "RIFFWAVEfmt ");
  const [channels, rate] = [view.getUint16(22, true), view.getUint32(24, true)];
  const side = (n) => Int16Array.from({ length: data / 4 }, (_, at) => view.getInt16(44 + 4 * at + 2 * n, true));
  return { channels, rate, left: side(0), right: side(1) };
}

/** Return a tone. */
function tone(count, rate) {
  return Float32Array.from({ length: count }, (_, at) => 0.5 * Math.sin((2 * Math.PI * 300 * at) / rate));
}

test("a recording has the person on the left and the assistant on the right, each at its time", () => {
  const recording = new Recording();
  assert.equal(recording.empty, true);
  for (let n = 1; n <= 100; n++) recording.push({ role: "assistant", samples: new Float32Array(960), rate: 48_000 }, 20 * n);
  assert.equal(recording.empty, true, "silence is nothing to save");
  assert.equal(recording.zeroMs, 0);
  for (let n = 1; n <= 50; n++) {
    // The microphone is opened after a second; its pieces come unevenly.
    recording.push({ role: "user", samples: tone(320, 16_000), rate: 16_000 }, 1000 + 20 * n + (n % 5 ? 60 : 0));
  }
  recording.push({ role: "assistant", samples: tone(960, 48_000), rate: 48_000 }, 2020);
  assert.equal(recording.empty, false);
  const { channels, rate, left, right } = read(recording.wav());
  assert.deepEqual([channels, rate], [2, RATE]);
  const first = (side) => side.findIndex((value) => Math.abs(value) > 100) / RATE;
  assert.ok(Math.abs(first(left) - 1) < 0.1, String(first(left)));
  assert.ok(Math.abs(first(right) - 2) < 0.02, String(first(right)));
  const loud = left.slice(1.1 * RATE, 2 * RATE);
  for (let at = 0; at + 480 <= loud.length; at += 480) {
    assert.ok(loud.slice(at, at + 480).some((value) => value > 10_000), "uneven pieces leave no gap");
  }
});

test("a recording keeps its time over a closed microphone, and ends before it fills the memory", () => {
  const recording = new Recording();
  const piece = { role: "user", samples: tone(480, RATE), rate: RATE };
  recording.push(piece, 20);
  recording.push(piece, 5020);
  recording.push(piece, MOST_MS + 100);
  const { left, right } = read(recording.wav());
  assert.equal(left.length, 5 * RATE + 480);
  assert.ok(left.slice(0, 480).some(Boolean) && left.slice(-480).some(Boolean));
  assert.ok(!left.slice(480, -480).some(Boolean));
  assert.ok(!right.some(Boolean));
});
