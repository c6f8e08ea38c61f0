/**
 * A stereo recording of the conversation: the person on the left, the assistant on the right. Pure.
 *
 * Each side comes in pieces, at the rate of its device, for as long as that is open. A piece follows the last one
 * without a gap, unless the clock says that the device was away meanwhile. Silence takes no memory.
 */

import { toPcm16 } from "../pcm.js";
import { Resampler } from "../resample.js";

/** Samples a second of the file: the rate of the voices. */
export const RATE = 24_000;

/** Pieces that are later than this do not follow the last one: the device was closed. */
const GAP_MS = 250;

/** After this the recording ends, so that the page does not fill the memory: about 170 MB at most. */
export const MOST_MS = 30 * 60_000;

const BYTES = 2; // of a sample

/** One side. */
class Track {
  /** @type {{ at: number, pcm: Uint8Array<ArrayBuffer> }[]} Samples by the place of the first one, in order. */
  pieces = [];
  /** The place of the next sample. */
  end = 0;
  /** @type {Resampler | null} */
  #resampler = null;

  /** @param {Float32Array} samples @param {number} rate @param {number} atMs when the last of them was heard */
  push(samples, rate, atMs) {
    if (this.#resampler?.sourceRate !== rate) this.#resampler = new Resampler(rate, RATE);
    const pcm = toPcm16(this.#resampler.push(samples));
    const length = pcm.length / BYTES;
    const place = Math.round((atMs * RATE) / 1000) - length;
    if (place - this.end > (GAP_MS * RATE) / 1000) this.end = place;
    if (pcm.some(Boolean)) this.pieces.push({ at: this.end, pcm });
    this.end += length;
  }
}

/** A recording from its first piece on. */
export class Recording {
  /** @type {number | null} The time of its first sample; null: there is none yet. */
  zeroMs = null;
  #tracks = { user: new Track(), assistant: new Track() };

  /** Whether there is something to save. */
  get empty() {
    return !Object.values(this.#tracks).some(({ pieces }) => pieces.length);
  }

  /** Take a piece that ends now. @param {import("../events.js").SoundPiece} piece @param {number} nowMs */
  push({ role, samples, rate }, nowMs) {
    this.zeroMs ??= nowMs - (1000 * samples.length) / rate;
    if (nowMs - this.zeroMs <= MOST_MS) this.#tracks[role].push(samples, rate, nowMs - this.zeroMs);
  }

  /** Return the recording as the parts of a WAV file. @returns {Uint8Array<ArrayBuffer>[]} */
  wav() {
    const { user, assistant } = this.#tracks;
    const length = Math.max(user.end, assistant.end);
    const sides = [user, assistant].map(({ pieces }) => ({ pieces, next: 0 }));
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const parts = [header(length)];
    for (let from = 0; from < length; from += RATE) {
      const second = new Uint8Array(2 * BYTES * Math.min(RATE, length - from));
      for (const [channel, side] of sides.entries()) side.next = mix(side, channel, from, second);
      parts.push(second);
    }
    return parts;
  }
}

/**
 * Write a side's pieces into a second of sound; return the first piece that goes on after it.
 * @param {{ pieces: readonly { at: number, pcm: Uint8Array }[], next: number }} side
 * @param {number} channel
 * @param {number} from
 * @param {Uint8Array} second
 */
function mix({ pieces, next }, channel, from, second) {
  const to = from + second.length / (2 * BYTES);
  let place = next;
  for (; place < pieces.length && pieces[place].at < to; place++) {
    const { at, pcm } = pieces[place];
    const length = pcm.length / BYTES;
    let target = 2 * BYTES * (Math.max(at, from) - from) + BYTES * channel;
    const end = BYTES * Math.min(length, to - at);
    for (let source = BYTES * Math.max(0, from - at); source < end; source += BYTES, target += 2 * BYTES) {
      second[target] = pcm[source];
      second[target + 1] = pcm[source + 1];
    }
    if (at + length > to) break;
  }
  return place;
}

/** Return the head of a stereo WAV file. @param {number} length in samples */
function header(length) {
  const [channels, bytes] = [2, length * 2 * BYTES];
  const view = new DataView(new ArrayBuffer(44));
  /** @param {number} at @param {string} text */
  const write = (at, text) => Array.from(text, (letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + bytes, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, channels, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, RATE * channels * BYTES, true);
  view.setUint16(32, channels * BYTES, true);
  view.setUint16(34, 8 * BYTES, true);
  write(36, "data");
  view.setUint32(40, bytes, true);
  return new Uint8Array(view.buffer);
}
