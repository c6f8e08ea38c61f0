import assert from "node:assert/strict";
import { test } from "node:test";

import { loudness, toFloats, toPcm16 } from "../pcm.js";
import { ReplySound } from "../reply-sound.js";
import { Resampler } from "../resample.js";
import { chance, concatenate, pieces } from "./support.js";

const RATES = [8000, 16000, 22050, 24000, 32000, 44100, 48000, 96000, 44101];

function tone(frequency, rate, seconds) {
  const length = Math.round(rate * seconds);
  return Float32Array.from({ length }, (_, n) => 0.5 * Math.sin((2 * Math.PI * frequency * n) / rate));
}

function resample(signal, source, target) {
  const resampler = new Resampler(source, target);
  return concatenate([resampler.push(signal), resampler.flush()]);
}

const decibels = (ratio) => 20 * Math.log10(ratio);

test("the output does not depend, to the bit, on how the input was cut", () => {
  const random = chance(1);
  const noise = Float32Array.from({ length: 3000 }, () => random() - 0.5);
  for (const source of RATES) {
    for (const target of [16000, 48000]) {
      const whole = resample(noise, source, target);
      for (const most of [1, 7, 128, 1000]) {
        const resampler = new Resampler(source, target);
        const parts = [...pieces(noise, random, most)].map((piece) => resampler.push(piece));
        assert.deepEqual(concatenate([...parts, resampler.flush()]), whole, `${source} to ${target}, up to ${most}`);
      }
      assert.equal(whole.length, Math.ceil((noise.length * target) / source));
    }
  }
});

test("a tone comes out in time and as loud, at every rate", () => {
  for (const source of RATES) {
    const frequency = 1000;
    const got = resample(tone(frequency, source, 0.2), source, 16000);
    const wanted = tone(frequency, 16000, 0.2);
    let error = 0;
    for (let n = 200; n < 3000; n++) error = Math.max(error, Math.abs(got[n] - wanted[n]));
    assert.ok(decibels(error / 0.5) < -70, `${source}: ${decibels(error / 0.5)} dB`);
  }
});

test("what lies above the target's band is 90 dB down by the time it folds back into speech", (context) => {
  for (const source of [44100, 48000, 96000]) {
    let worst = -Infinity;
    for (const frequency of [9100, 10000, 12000, 15000, 16000, 20000]) {
      const heard = resample(tone(frequency, source, 0.1), source, 16000).subarray(200, -200);
      worst = Math.max(worst, decibels(loudness(heard) / loudness(tone(frequency, source, 0.1))));
    }
    context.diagnostic(`${source} to 16000 Hz: aliases at most ${worst.toFixed(1)} dB`);
    assert.ok(worst < -90, `${source}: ${worst} dB`);
  }
});

test("speech passes unchanged: flat to 7 kHz", (context) => {
  for (const source of [44100, 48000]) {
    let worst = 0;
    for (const frequency of [100, 1000, 3400, 5000, 7000]) {
      const heard = resample(tone(frequency, source, 0.2), source, 16000).subarray(400, -400);
      worst = Math.max(worst, Math.abs(decibels(loudness(heard) / (0.5 / Math.SQRT2))));
    }
    context.diagnostic(`${source} to 16000 Hz: ${worst.toFixed(3)} dB`);
    assert.ok(worst < 0.1, `${source}: ${worst} dB`);
  }
});

test("at the wire's own rate samples pass as they are, and nothing waits", () => {
  const signal = tone(440, 16000, 0.05);
  const resampler = new Resampler(16000, 16000);
  assert.deepEqual(resampler.push(signal), signal);
  assert.equal(resampler.holdBack, 0);
  assert.equal(resampler.flush().length, 0);
  assert.equal(new Resampler(48000, 16000).holdBack, 72);
});

test("rates that no card has are refused", () => {
  for (const rate of [0, -1, 2999, 1e6, 44100.5, NaN]) assert.throws(() => new Resampler(rate, 16000), RangeError);
});

test("PCM16 comes back as it was; what is too loud is cut, what is no number is silence", () => {
  const bytes = Uint8Array.from({ length: 512 }, (_, n) => (n * 37) & 0xff);
  assert.deepEqual(toPcm16(toFloats(bytes)), bytes);
  const most = 32767 / 32768;
  const cut = toFloats(toPcm16(Float32Array.from([2, -2, NaN, 1])));
  assert.deepEqual(cut, Float32Array.from([most, -1, 0, most]));
  assert.equal(toFloats(new Uint8Array(5)).length, 2);
  assert.equal(loudness(new Float32Array(0)), 0);
});

test("a reply's positions are exact at its end, at every rate, and never ahead of what came", () => {
  const random = chance(3);
  for (const rate of [16000, 24000, 44100, 48000, 96000]) {
    for (const length of [1, 2, 100, 4801, 4802, 24001]) {
      const sound = new ReplySound(24000, rate);
      let made = 0;
      let offset = 0;
      for (const piece of pieces(new Float32Array(length), random, 1440)) {
        const got = sound.push(4, offset, piece);
        assert.equal(got.offset, made);
        made += got.samples.length;
        offset += piece.length;
        assert.ok(sound.position(4, made) <= offset);
      }
      made += sound.finish(4).samples.length;
      assert.equal(made, Math.ceil((length * rate) / 24000));
      assert.equal(sound.position(4, made), length);
    }
  }
});

test("a reply taken up again lies where it lay before", () => {
  const signal = tone(300, 24000, 0.3);
  for (const rate of [44100, 48000]) {
    const straight = new ReplySound(24000, rate);
    const whole = concatenate([straight.push(1, 0, signal).samples, straight.finish(1).samples]);
    const broken = new ReplySound(24000, rate);
    broken.push(1, 0, signal.subarray(0, 3000));
    broken.restart();
    const again = broken.push(1, 2400, signal.subarray(2400));
    assert.equal(again.offset, Math.ceil((2400 * rate) / 24000));
    // After the filter's first half, which has not seen the earlier samples, the outputs are the same.
    const settled = 100;
    const wanted = whole.subarray(again.offset, again.offset + again.samples.length);
    assert.deepEqual(again.samples.subarray(settled), wanted.subarray(settled));
    const repeated = broken.push(1, 4800, signal.subarray(4800));
    assert.equal(repeated.samples.length, 0);
  }
});
