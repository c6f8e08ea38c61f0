/** Shared by the tests: random numbers with a seed, and a server's messages. */

import { readFileSync } from "node:fs";

import { encode } from "../msgpack.js";

/** Return a function that returns numbers from 0 to 1, the same for the same seed (mulberry32). */
export function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Return a whole number from `least` to `most`. */
export function whole(random, least, most) {
  return least + Math.floor(random() * (most - least + 1));
}

/** Cut a signal into pieces of random length. */
export function* pieces(signal, random, most) {
  for (let at = 0; at < signal.length; ) {
    const length = whole(random, 0, most);
    yield signal.subarray(at, at + length);
    at += length;
  }
}

export function concatenate(parts) {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export const unhex = (text) => new Uint8Array(Buffer.from(text, "hex"));
export const readData = (name) => JSON.parse(readFileSync(new URL(`./data/${name}`, import.meta.url), "utf8"));

export const LIMITS = { frame_bytes: 65536, resume_s: 30 };

export function readyMap(values = {}) {
  return {
    session: "voice-1", token: "token-1", resumed: false, state: "listening", input: { codec: "pcm16", rate: 16000 },
    output: { codec: "pcm16", rate: 24000 }, config: {}, capabilities: {}, limits: LIMITS, history: [], played: null,
    ...values,
  };
}

/** Return a server's message as a socket would deliver it. */
export function frame(...parts) {
  return encode(parts).buffer;
}
