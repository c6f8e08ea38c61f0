import assert from "node:assert/strict";
import { test } from "node:test";

import { OnsetDetector } from "../onset.js";
import { toFloats } from "../pcm.js";
import { Playback } from "../playback.js";
import { Resampler } from "../resample.js";
import { chance, concatenate } from "./support.js";

const RATE = 48000;
const QUANTUM = 128;

// The globals of an AudioWorklet, as far as the worklets use them.
const processors = new Map();
globalThis.sampleRate = RATE;
globalThis.registerProcessor = (name, processor) => processors.set(name, processor);
globalThis.AudioWorkletProcessor = class {
  port = {
    onmessage: null,
    posted: [],
    postMessage(data, transfer = []) {
      this.posted.push(structuredClone(data, { transfer }));
    },
  };
};
await import("../capture-worklet.js");
await import("../playback-worklet.js");

function make(name, processorOptions) {
  const node = new (processors.get(name))({ processorOptions });
  const say = (data) => node.port.onmessage({ data });
  const take = () => node.port.posted.splice(0);
  return { node, say, take };
}

const noise = (count, seed = 5) => {
  const random = chance(seed);
  return Float32Array.from({ length: count }, () => 0.2 * (random() - 0.5));
};

// ---- the microphone

function capture(signal, { channels = 1 } = {}) {
  const worklet = make("voxlane-capture", { rate: 16000, frameSamples: 320 });
  for (let at = 0; at + QUANTUM <= signal.length; at += QUANTUM) {
    const block = signal.subarray(at, at + QUANTUM);
    assert.equal(worklet.node.process([Array.from({ length: channels }, () => block)]), true);
  }
  return worklet;
}

test("a microphone's blocks become frames of 20 ms at 16 kHz, which are the resampled stream", () => {
  const signal = noise(QUANTUM * 400);
  const frames = capture(signal).take();
  assert.ok(frames.length >= 52);
  assert.ok(frames.every(({ pcm }) => pcm.length === 640));
  const got = concatenate(frames.map(({ pcm }) => toFloats(pcm)));
  const wanted = new Resampler(RATE, 16000).push(signal);
  for (let n = 0; n < got.length; n++) assert.ok(Math.abs(got[n] - wanted[n]) <= 1 / 65536 + 1e-9);
});

test("channels are mixed, and a device that is not there yet is waited for", () => {
  const signal = noise(QUANTUM * 40);
  const mono = capture(signal).take().map(({ pcm }) => [...pcm]);
  assert.deepEqual(capture(signal, { channels: 2 }).take().map(({ pcm }) => [...pcm]), mono);
  const starting = make("voxlane-capture", { rate: 16000, frameSamples: 320 });
  assert.equal(starting.node.process([[]]), true);
  assert.deepEqual(starting.take(), []);
});

test("a muted microphone goes on sending, silence", () => {
  const worklet = make("voxlane-capture", { rate: 16000, frameSamples: 320 });
  worklet.say({ muted: true });
  for (let block = 0; block < 100; block++) worklet.node.process([[noise(QUANTUM)]]);
  const frames = worklet.take();
  assert.ok(frames.length >= 12);
  assert.ok(frames.every(({ pcm, level, onset }) => pcm.every((byte) => byte === 0) && level === 0 && !onset));
});

test("a microphone changes to another rate as it runs, and stays as muted as it is told to be", () => {
  const worklet = make("voxlane-capture", { rate: 16000, frameSamples: 320 });
  worklet.say({ rate: RATE, frameSamples: 960, muted: false });
  const signal = noise(QUANTUM * 15);
  for (let at = 0; at < signal.length; at += QUANTUM) worklet.node.process([[signal.subarray(at, at + QUANTUM)]]);
  const frames = worklet.take();
  assert.deepEqual(frames.map(({ pcm }) => pcm.length), [1920, 1920]);
  const got = concatenate(frames.map(({ pcm }) => toFloats(pcm)));
  got.forEach((value, n) => assert.ok(Math.abs(value - signal[n]) <= 1 / 65536 + 1e-9));
});

test("a microphone that is let go ends its processor", () => {
  const worklet = make("voxlane-capture", { rate: 16000, frameSamples: 320 });
  worklet.say({ over: true });
  assert.equal(worklet.node.process([[noise(QUANTUM)]]), false);
});

test("an onset is a voice above the room's noise, once, not a click and not the noise itself", () => {
  const onsets = (levels) => {
    const detector = new OnsetDetector();
    return levels.flatMap((level, place) => (detector.push(level) ? [place] : []));
  };
  const room = new Array(100).fill(0.002);
  assert.deepEqual(onsets([...room, ...new Array(50).fill(0.05)]), [101]);
  assert.deepEqual(onsets([...room, 0.5, ...room]), []);
  assert.deepEqual(onsets([...room, ...new Array(10).fill(0.05), ...room, ...new Array(10).fill(0.05)]), [101, 211]);
  assert.deepEqual(onsets([...room, 0.05, 0.05, 0.002, 0.05, 0.05]), [101]); // a syllable's pause
  assert.deepEqual(onsets(new Array(500).fill(0.004)), []);
  const fan = [...new Array(300).fill(0.02)];
  assert.equal(onsets([...fan, ...new Array(100).fill(0.03)]).filter((place) => place > 10).length, 0);
  assert.deepEqual(onsets([...fan, ...new Array(20).fill(0.2)]).filter((place) => place > 10), [301]);
});

// ---- the loudspeaker

function player() {
  const worklet = make("voxlane-playback");
  const render = (blocks = 1) => {
    const heard = [];
    for (let block = 0; block < blocks; block++) {
      const output = [new Float32Array(QUANTUM), new Float32Array(QUANTUM)];
      assert.equal(worklet.node.process([], [output]), true);
      assert.deepEqual(output[0], output[1]);
      heard.push(output[0]);
    }
    return concatenate(heard);
  };
  return { ...worklet, render };
}

test("a reply is played, acked and announced, and its position can be asked for", () => {
  const { say, take, render } = player();
  const samples = noise(9600);
  say({ do: "push", epoch: 1, offset: 0, samples: samples.slice() });
  say({ do: "finish", epoch: 1, offset: 9600, samples: new Float32Array(0) });
  const heard = render(80);
  // After the smoothed first milliseconds the samples are the reply's own.
  assert.deepEqual(heard.subarray(1000, 9600), samples.subarray(1000));
  const told = take();
  assert.deepEqual(told.filter(({ begins }) => begins), [{ begins: 1 }]);
  const acks = told.flatMap(({ acks = [] }) => acks);
  assert.deepEqual(acks.at(-1), { epoch: 1, samples: 9600, queued: 0 });
  assert.ok(acks.length >= 2);
  const figures = told.filter((one) => one.figures).map((one) => one.figures);
  assert.equal(figures.length, 2);
  assert.ok(figures[0].playing && figures[0].level > 0.01 && figures[0].bufferMs > 90 && figures[0].underruns === 0);
  assert.equal(figures[1].playing, false);
  say({ do: "position" });
  assert.deepEqual(take(), [{ position: { epoch: 1, samples: 9600 } }]);
});

test("a hold is silent within milliseconds and acked at once; the release loses and repeats nothing", () => {
  const { say, take, render } = player();
  const samples = Float32Array.from({ length: 9600 }, (_, n) => 0.5 * Math.sin(n / 20));
  say({ do: "push", epoch: 1, offset: 0, samples: samples.slice() });
  const before = render(20);
  take();
  say({ do: "hold", epoch: 1 });
  assert.deepEqual(take(), [{ acks: [{ epoch: 1, samples: 2560, queued: 7040 }] }]);
  const held = render(20);
  assert.ok(held.subarray(480).every((value) => value === 0), "10 ms");
  say({ do: "release", epoch: 1 });
  const after = render(30);
  assert.deepEqual(after.subarray(1000), samples.subarray(2560 + 1000, 2560 + 3840));
  // No edge clicks: no step is much larger than the steepest of the sound itself.
  const all = concatenate([before, held, after]);
  let steepest = 0;
  for (let n = 1; n < all.length; n++) steepest = Math.max(steepest, Math.abs(all[n] - all[n - 1]));
  assert.ok(steepest < 0.06, `${steepest}`);
});

test("an interruption is silent at once, and the next reply is heard", () => {
  const { say, take, render } = player();
  say({ do: "push", epoch: 1, offset: 0, samples: noise(9600) });
  render(10);
  say({ do: "interrupt", epoch: 1 });
  assert.deepEqual(take().at(-1), { acks: [{ epoch: 1, samples: 1280, queued: 0 }] });
  assert.ok(render(20).subarray(480).every((value) => value === 0));
  say({ do: "push", epoch: 2, offset: 0, samples: noise(9600, 6) });
  assert.deepEqual(render(20).subarray(1000), noise(9600, 6).subarray(1000, 2560));
});

test("a reply that follows an interrupted one without a pause does not click", () => {
  const { say, render } = player();
  say({ do: "push", epoch: 1, offset: 0, samples: new Float32Array(9600).fill(0.5) });
  const before = render(10);
  say({ do: "interrupt", epoch: 1 });
  say({ do: "push", epoch: 2, offset: 0, samples: new Float32Array(9600).fill(-0.5) });
  const all = concatenate([before, render(10)]);
  let steepest = 0;
  for (let n = 1; n < all.length; n++) steepest = Math.max(steepest, Math.abs(all[n] - all[n - 1]));
  assert.ok(steepest < 0.06, `${steepest}`);
  assert.ok(Math.abs(all.at(-1) + 0.5) < 1e-4);
});

test("the last samples that the filter kept back are no underrun", () => {
  const { say, take, render } = player();
  say({ do: "push", epoch: 1, offset: 0, samples: noise(2560) });
  render(60); // plays all that came, and then has nothing
  say({ do: "finish", epoch: 1, offset: 2560, samples: noise(48) });
  render(60);
  const told = take();
  assert.deepEqual(told.flatMap(({ acks = [] }) => acks).at(-1), { epoch: 1, samples: 2608, queued: 0 });
  assert.equal(told.findLast((one) => one.figures).figures.underruns, 0);
});

test("ducking is quick, ends by itself, and by a release", () => {
  const playback = new Playback(RATE);
  playback.take({ do: "duck" }); // nothing plays: nothing is ducked
  playback.take({ do: "push", epoch: 1, offset: 0, samples: new Float32Array(2 * RATE).fill(0.5) });
  const block = new Float32Array(480); // 10 ms
  const level = (blocks) => {
    for (let n = 0; n < blocks; n++) playback.render(block);
    return Math.round(1000 * block[479]) / 1000;
  };
  assert.equal(level(5), 0.5);
  playback.take({ do: "duck" });
  assert.equal(level(3), 0.089);
  assert.equal(level(50), 0.089);
  assert.equal(level(20), 0.5);
  playback.take({ do: "duck" });
  assert.equal(level(3), 0.089);
  playback.take({ do: "hold", epoch: 1 });
  assert.equal(level(3), 0);
  playback.take({ do: "release", epoch: 1 });
  assert.equal(level(5), 0.5);
});

test("a reply that the server lowers goes on, every sample of it, until its release", () => {
  const playback = new Playback(RATE);
  const samples = Float32Array.from({ length: 2 * RATE }, (_, n) => 0.5 * Math.sin(n / 20));
  playback.take({ do: "push", epoch: 1, offset: 0, samples: samples.slice() });
  const play = (blocks) => concatenate(Array.from({ length: blocks }, () => {
    const block = new Float32Array(480); // 10 ms
    playback.render(block);
    return block;
  }));
  const before = play(10);
  playback.take({ do: "lower", epoch: 1, gain: 0.2 });
  const lowered = play(80); // longer than a guess lasts
  playback.take({ do: "release", epoch: 1 });
  const after = play(20);
  const all = concatenate([before, lowered, after]);
  assert.deepEqual(before, samples.subarray(0, 4800));
  const ramp = 0.02 * RATE;
  for (let n = 4800 + ramp; n < 43200; n++) assert.ok(Math.abs(all[n] - 0.2 * samples[n]) < 1e-6, `${n}`);
  for (let n = 43200 + ramp; n < all.length; n++) assert.ok(Math.abs(all[n] - samples[n]) < 1e-6, `${n}`);
  assert.equal(playback.jitter.position, all.length); // what was lowered was heard
  let steepest = 0;
  for (let n = 1; n < all.length; n++) steepest = Math.max(steepest, Math.abs(all[n] - all[n - 1]));
  assert.ok(steepest < 0.03, `${steepest}`);
});

test("a lowered reply can be held, interrupted and followed by one at full loudness", () => {
  const playback = new Playback(RATE);
  const block = new Float32Array(480);
  const level = (blocks) => {
    for (let n = 0; n < blocks; n++) playback.render(block);
    return Math.round(1000 * block[479]) / 1000;
  };
  const push = (epoch) => {
    playback.take({ do: "push", epoch, offset: 0, samples: new Float32Array(RATE / 2).fill(0.5) });
  };
  push(1);
  assert.equal(level(5), 0.5);
  playback.take({ do: "duck" });
  playback.take({ do: "lower", epoch: 1, gain: 0.2 });
  assert.equal(level(3), 0.1);
  playback.take({ do: "hold", epoch: 1 });
  assert.equal(level(3), 0);
  playback.take({ do: "release", epoch: 1 });
  assert.equal(level(3), 0.5);
  playback.take({ do: "lower", epoch: 1, gain: 0.2 });
  assert.equal(level(3), 0.1);
  playback.take({ do: "interrupt", epoch: 1 });
  assert.equal(level(3), 0);
  push(2);
  assert.equal(level(8), 0.5);
  playback.take({ do: "lower", epoch: 1, gain: 0.2 }); // late: that reply is over
  assert.equal(level(3), 0.5);
  playback.take({ do: "lower", epoch: 2, gain: 0.2 });
  playback.take({ do: "release", epoch: 1 });
  assert.equal(level(3), 0.1);
  push(3);
  assert.equal(level(50), 0.5); // the next reply was not lowered
  playback.take({ do: "lower", epoch: 3, gain: 0.2 });
  assert.equal(level(3), 0.1);
  playback.take({ do: "restart", held: false });
  playback.take({ do: "push", epoch: 3, offset: 0, samples: new Float32Array(RATE).fill(0.5) });
  assert.equal(level(12), 0.5);
});

test("a break and another conversation", () => {
  const { say, render } = player();
  const samples = noise(9600);
  say({ do: "push", epoch: 1, offset: 0, samples: samples.slice() });
  render(20);
  say({ do: "restart", held: false });
  assert.ok(render(4).subarray(480).every((value) => value === 0));
  say({ do: "push", epoch: 1, offset: 2000, samples: samples.slice(2000) });
  assert.deepEqual(render(20).subarray(1000), samples.subarray(2560 + 1000, 2560 + 2560));
  say({ do: "reset" });
  say({ do: "push", epoch: 1, offset: 0, samples: samples.slice() });
  assert.deepEqual(render(20).subarray(1000), samples.subarray(1000, 2560));
});

test("what goes to the sound card comes back while it is recorded, in pieces of 20 ms", () => {
  const { node, say, take } = make("voxlane-playback");
  const played = [];
  const render = (blocks) => {
    for (let n = 0; n < blocks; n++) {
      const block = new Float32Array(QUANTUM);
      node.process([], [[block]]);
      played.push(block.slice());
    }
    return take().filter((data) => data.played).map((data) => data.played);
  };
  assert.deepEqual(render(20), []);
  say({ do: "push", epoch: 1, offset: 0, samples: noise(RATE) });
  say({ do: "finish", epoch: 1, offset: RATE, samples: new Float32Array(0), end: RATE });
  say({ do: "record", on: true });
  played.length = 0;
  const pieces = render(150);
  assert.equal(pieces.length, 20);
  assert.ok(pieces.every(({ length }) => length === 960));
  assert.deepEqual(concatenate(pieces), concatenate(played).subarray(0, 20 * 960));
  assert.ok(concatenate(pieces).some(Boolean));
  say({ do: "record", on: false });
  assert.deepEqual(render(20), []);
});
