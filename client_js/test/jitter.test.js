import assert from "node:assert/strict";
import { test } from "node:test";

import { JitterBuffer } from "../jitter.js";
import { chance, whole } from "./support.js";

const RATE = 24000;

/** Samples with distinct values: never 0, exact as floats. */
const sound = (epoch, offset, count) => Float32Array.from({ length: count }, (_, n) => epoch * 65536 + offset + n + 1);

function pull(buffer, count) {
  const block = new Float32Array(count);
  const filled = buffer.pull(block);
  return block.subarray(0, filled);
}

/** Pull until a whole reply is ready or has waited long enough. */
function pullAll(buffer, count) {
  const heard = [];
  for (let left = count; left > 0; left -= 128) heard.push(...pull(buffer, 128));
  return Float32Array.from(heard);
}

test("silence where there is nothing", () => {
  const buffer = new JitterBuffer(RATE);
  assert.equal(pull(buffer, 128).length, 0);
  assert.deepEqual(buffer.takeAcks(), []);
  assert.equal(buffer.playing, false);
});

test("a reply begins when enough has come, when it is complete, or when it has waited as long", () => {
  const full = new JitterBuffer(RATE);
  full.push(1, 0, sound(1, 0, full.target - 1));
  assert.equal(pull(full, 128).length, 0);
  full.push(1, full.target - 1, sound(1, full.target - 1, 1));
  assert.deepEqual(pull(full, 128), sound(1, 0, 128));

  const short = new JitterBuffer(RATE);
  short.push(1, 0, sound(1, 0, 10));
  assert.equal(pull(short, 128).length, 0);
  short.finish(1);
  assert.deepEqual(pull(short, 128), sound(1, 0, 10));

  const late = new JitterBuffer(RATE);
  late.push(1, 0, sound(1, 0, 10));
  assert.deepEqual(pullAll(late, late.target + 128), sound(1, 0, 10));
});

test("acks fall due every 100 ms, in the second reply too, and say when all is played", () => {
  const buffer = new JitterBuffer(RATE);
  for (const epoch of [1, 2]) {
    buffer.push(epoch, 0, sound(epoch, 0, 6000));
    buffer.finish(epoch);
    pull(buffer, 2000);
    assert.deepEqual(buffer.takeAcks(), []);
    pull(buffer, 2000);
    assert.deepEqual(buffer.takeAcks(), [{ epoch, samples: 4000, queued: 2000 }]);
    assert.equal(pull(buffer, 3000).length, 2000);
    assert.deepEqual(buffer.takeAcks(), [{ epoch, samples: 6000, queued: 0 }]);
  }
});

test("a hold keeps the sample, and the release goes on with it", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 2000));
  pull(buffer, 300);
  buffer.hold(1);
  assert.deepEqual(buffer.takeAcks(), [{ epoch: 1, samples: 300, queued: 1700 }]);
  assert.equal(pull(buffer, 128).length, 0);
  buffer.push(1, 2000, sound(1, 2000, 100));
  buffer.release(1);
  assert.deepEqual(pull(buffer, 128), sound(1, 300, 128));
  assert.equal(buffer.underruns, 0);
});

test("a hold of a reply that is over is ignored", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(2, 0, sound(2, 0, 2000));
  pull(buffer, 128);
  buffer.hold(1);
  assert.equal(buffer.held, false);
});

test("an interruption empties the queue; late sound of it is ignored, the next reply is not", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 2000));
  pull(buffer, 300);
  buffer.hold(1);
  buffer.takeAcks();
  buffer.interrupt(1);
  buffer.push(1, 2000, sound(1, 2000, 500));
  assert.equal(pull(buffer, 128).length, 0);
  assert.equal(buffer.queued, 0);
  assert.equal(buffer.held, false);
  buffer.push(2, 0, sound(2, 0, 2000));
  assert.deepEqual(pull(buffer, 128), sound(2, 0, 128));
});

test("an interruption says at once what was played, and only what was", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 2000));
  pull(buffer, 77);
  buffer.interrupt(1);
  assert.deepEqual(buffer.takeAcks(), [{ epoch: 1, samples: 77, queued: 0 }]);
});

test("the next reply waits for the end of this one, and survives its interruption", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 1000));
  buffer.push(2, 0, sound(2, 0, 1000));
  buffer.finish(1);
  assert.deepEqual([...pull(buffer, 1050)], [...sound(1, 0, 1000), ...sound(2, 0, 50)]);
  assert.deepEqual(buffer.takeAcks()[0], { epoch: 1, samples: 1000, queued: 1000 });
  buffer.interrupt(1);
  assert.deepEqual(pull(buffer, 50), sound(2, 50, 50));
});

test("a later reply's hold outlasts what is said of an earlier one", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 1000));
  buffer.push(2, 0, sound(2, 0, 1000));
  pull(buffer, 128);
  buffer.hold(2);
  buffer.release(1);
  buffer.interrupt(1);
  assert.equal(buffer.held, true);
  buffer.interrupt(2);
  assert.equal(buffer.held, false);
});

test("an underrun makes the next beginnings wait longer, clean replies make them wait less", () => {
  const buffer = new JitterBuffer(RATE);
  const first = buffer.target;
  buffer.push(1, 0, sound(1, 0, 1000));
  pullAll(buffer, 1024); // runs dry
  for (let blocks = 0; blocks < 20; blocks++) pull(buffer, 128);
  assert.equal(buffer.underruns, 0); // it may have been the end
  buffer.push(1, 1000, sound(1, 1000, 10));
  assert.equal(buffer.underruns, 1);
  assert.ok(buffer.starvedSamples >= 20 * 128);
  assert.ok(buffer.target > first);
  const learnt = buffer.target;
  assert.equal(pull(buffer, 128).length, 0); // waits to have enough again
  buffer.finish(1);
  assert.deepEqual(pull(buffer, 128), sound(1, 1000, 10));
  assert.equal(buffer.target, learnt);
  for (let epoch = 2; epoch < 40; epoch++) {
    buffer.push(epoch, 0, sound(epoch, 0, 100));
    buffer.finish(epoch);
    pull(buffer, 128);
  }
  assert.equal(buffer.target, 0.02 * RATE);
  assert.equal(buffer.underruns, 1);
});

test("however long an underrun is, no reply waits more than 400 ms", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 1000));
  pullAll(buffer, 10 * RATE);
  buffer.push(1, 1000, sound(1, 1000, 10));
  assert.equal(buffer.target, 0.4 * RATE);
});

test("the last sound running dry before its end is told is no underrun", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 1000));
  pullAll(buffer, 4000);
  buffer.finish(1);
  assert.equal(buffer.underruns, 0);
  assert.equal(buffer.playing, false);
});

test("a page that was reloaded begins in the midst of a reply", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.restart(false);
  buffer.push(3, 48000, sound(3, 48000, 2000));
  assert.deepEqual(pull(buffer, 128), sound(3, 48000, 128));
  assert.equal(buffer.position, 48128);
});

test("a reply that was silenced stays so after a break, though it is told again", () => {
  for (const begun of [true, false]) {
    const buffer = new JitterBuffer(RATE);
    buffer.push(2, 0, sound(2, 0, 2000));
    if (begun) pull(buffer, 300);
    buffer.interrupt(2);
    buffer.restart(false);
    buffer.push(2, 0, sound(2, 0, 2000));
    assert.equal(pull(buffer, 1000).length, 0);
    assert.equal(buffer.position, begun ? 300 : 0);
    buffer.push(3, 0, sound(3, 0, 2000));
    assert.deepEqual(pull(buffer, 128), sound(3, 0, 128));
    buffer.reset();
    buffer.push(1, 0, sound(1, 0, 2000));
    assert.deepEqual(pull(buffer, 128), sound(1, 0, 128));
  }
});

test("what was played is said again after a break: it may have been lost", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(1, 0, sound(1, 0, 1000));
  buffer.finish(1);
  pull(buffer, 1000);
  assert.deepEqual(buffer.takeAcks(), [{ epoch: 1, samples: 1000, queued: 0 }]);
  buffer.restart(false);
  assert.deepEqual(buffer.takeAcks(), [{ epoch: 1, samples: 1000, queued: 0 }]);
});

test("another conversation counts from the beginning", () => {
  const buffer = new JitterBuffer(RATE);
  buffer.push(7, 0, sound(7, 0, 2000));
  pull(buffer, 128);
  buffer.reset();
  assert.deepEqual(buffer.takeAcks(), []);
  buffer.push(1, 0, sound(1, 0, 2000));
  assert.deepEqual(pull(buffer, 128), sound(1, 0, 128));
});

/**
 * A server and a listener in a random walk. The server sends replies one after the other, holds and releases,
 * interrupts, and after a break repeats what was not played. What is heard of each reply must be its samples in
 * order.
 */
class Walk {
  constructor(seed) {
    this.random = chance(seed);
    this.buffer = new JitterBuffer(RATE);
    this.epoch = 1; // the reply that is being sent
    this.sent = new Map([[1, 0]]);
    this.heard = new Map();
    this.cut = new Set(); // epochs that were interrupted
    this.acked = { epoch: 0, samples: 0 };
  }

  step() {
    const count = whole(this.random, 1, 900);
    const chosen = this.random();
    if (chosen < 0.4) this.listen(count);
    else if (chosen < 0.65) this.send(count);
    else if (chosen < 0.72) this.buffer.hold(this.epoch);
    else if (chosen < 0.84) this.buffer.release(this.epoch);
    else if (chosen < 0.9) this.breakOff(count);
    else if (chosen < 0.96) this.finish();
    else this.interrupt();
    for (const ack of this.buffer.takeAcks()) this.takeAck(ack);
  }

  listen(count) {
    const { held } = this.buffer;
    const got = pull(this.buffer, count);
    assert.ok(!held || got.length === 0, "nothing plays while held");
    for (const value of got) {
      const epoch = Math.floor((value - 1) / 65536);
      const before = this.heard.get(epoch) ?? 0;
      assert.equal(value, epoch * 65536 + before + 1, "the very next sample");
      assert.ok(!this.cut.has(epoch), "nothing of a reply after its interruption");
      this.heard.set(epoch, before + 1);
    }
    const { epoch, position } = this.buffer;
    if (epoch) assert.equal(position, this.heard.get(epoch), "the position is exact");
  }

  send(count) {
    const offset = this.sent.get(this.epoch);
    if (offset + count > 60000) return;
    this.buffer.push(this.epoch, offset, sound(this.epoch, offset, count));
    this.sent.set(this.epoch, offset + count);
  }

  breakOff(early) {
    this.buffer.restart(this.buffer.held);
    this.acked = { ...this.acked, samples: this.acked.samples - 1 }; // the last ack is sent again
    for (const [epoch, end] of this.sent) {
      const first = Math.max(0, (this.heard.get(epoch) ?? 0) - early);
      if (this.cut.has(epoch) || epoch < this.buffer.epoch || first >= end) continue;
      this.buffer.push(epoch, first, sound(epoch, first, end - first));
    }
  }

  next() {
    this.epoch += 1;
    this.sent.set(this.epoch, 0);
  }

  finish() {
    this.buffer.finish(this.epoch);
    this.next();
  }

  interrupt() {
    this.buffer.interrupt(this.epoch);
    for (const epoch of this.sent.keys()) this.cut.add(epoch);
    this.next();
  }

  takeAck(ack) {
    const { epoch, samples } = this.acked;
    assert.ok(ack.epoch > epoch || (ack.epoch === epoch && ack.samples > samples), "acks rise");
    assert.equal(ack.samples <= this.heard.get(ack.epoch), true, "acks never run ahead");
    this.acked = ack;
  }

  end() {
    this.buffer.finish(this.epoch);
    this.buffer.release(this.epoch);
    for (let blocks = 0; blocks < 20000 && this.buffer.queued; blocks++) this.listen(128);
    for (const ack of this.buffer.takeAcks()) this.takeAck(ack);
    for (const [epoch, end] of this.sent) {
      if (!this.cut.has(epoch)) assert.equal(this.heard.get(epoch) ?? 0, end, "no sample is lost");
    }
    assert.equal(this.acked.samples, this.buffer.position, "the last ack is the last sample");
  }
}

test("random walks: no sample lost, none repeated, positions exact, acks rising", () => {
  for (let seed = 1; seed <= 200; seed++) {
    const walk = new Walk(seed);
    try {
      for (let step = 0; step < 150; step++) walk.step();
      walk.end();
    } catch (error) {
      throw new Error(`seed ${seed}`, { cause: error });
    }
  }
});
