/** Quiet frames share a message while there is nothing to interrupt; a voice, a reply and a button do not wait. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Capture } from "../capture.js";
import { begin, silence } from "./client.js";

const quiet = () => ({ ...silence(), quiet: true });
const loud = () => ({ ...silence(), quiet: false });
const lengths = (world) => world.socket.said("audio").map(([, data]) => data.length);

async function talking() {
  const all = await begin();
  await all.client.talk();
  return { ...all, hear: (...frames) => frames.forEach((frame) => all.audio.handlers.frame(frame)) };
}

test("three quiet frames share a message, in their order", async () => {
  const { world, hear } = await talking();
  const frames = [1, 2, 3].map((value) => ({ ...quiet(), pcm: new Uint8Array(640).fill(value) }));
  hear(...frames.slice(0, 2));
  assert.deepEqual(lengths(world), []);
  hear(frames[2], quiet());
  assert.deepEqual(lengths(world), [1920]);
  const [[, data]] = world.socket.said("audio");
  assert.deepEqual([data[0], data[640], data[1919]], [1, 2, 3]);
});

test("a frame that may be a voice goes out at once, with those that waited", async () => {
  const { world, hear } = await talking();
  hear(quiet(), loud(), loud(), quiet());
  assert.deepEqual(lengths(world), [1280, 640]);
});

test("while something can be interrupted, every frame goes out at once", async () => {
  for (const state of ["hearing", "thinking", "speaking", "held"]) {
    const { world, hear } = await talking();
    hear(quiet());
    world.socket.tell("state", 2, state);
    hear(quiet(), quiet());
    assert.deepEqual(lengths(world), [1280, 640], state);
    world.socket.tell("state", 3, "listening");
    hear(quiet(), quiet(), quiet());
    assert.deepEqual(lengths(world), [1280, 640, 1920], state);
  }
});

test("what was heard before the button is sent before it", async () => {
  const { world, hear, client } = await talking();
  hear(quiet(), quiet());
  client.press();
  hear(quiet());
  client.release();
  hear(quiet());
  const sent = world.socket.sent.map(([name, data]) => (name === "audio" ? data.length : name));
  assert.deepEqual(sent.slice(-5), [1280, "start", 640, 640, "end"]);
});

test("frames that wait are sent when the microphone is closed, and counted when they are dropped", async () => {
  const { world, hear, client, audio } = await talking();
  hear(quiet());
  client.hush();
  assert.deepEqual(lengths(world), [640]);
  await client.talk();
  world.socket.drop();
  hear(quiet(), quiet(), quiet());
  audio.handlers.figures({ level: 0, playing: false, held: false });
  assert.equal(client.figures.droppedMs, 60);
});

test("a microphone tells the quiet frames from those that may be a voice", () => {
  const capture = new Capture(16000, 16000, 320);
  const frames = (amplitude) =>
    [...Array(10)].flatMap(() => capture.push(Float32Array.from({ length: 320 }, (_, at) => amplitude * Math.sin(at))));
  assert.ok(frames(0).every((frame) => frame.quiet));
  const [first, ...rest] = frames(0.2).slice(1); // the resampler may begin a frame late
  assert.equal(first.quiet, false);
  assert.ok(rest.every((frame) => !frame.quiet));
});
