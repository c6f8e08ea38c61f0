/**
 * Convert a reply between the wire's rate and the loudspeaker's: samples one way, positions the other, both exact.
 *
 * Each reply is a stream of its own: its output n lies at n / contextRate, however it was cut and wherever it was
 * resumed.
 */

import { Resampler } from "./resample.js";

/** Replies whose length is remembered: acks of a reply may come when the next has begun. */
export const REMEMBERED = 8;

/** @typedef {{ epoch: number, offset: number, samples: Float32Array<ArrayBuffer> }} Piece at the loudspeaker's rate */

/** Converts replies one after the other. */
export class ReplySound {
  #wireRate;
  #contextRate;
  #resampler;
  #epoch = 0;
  #next = -1; // the next sample of the wire; -1: wherever it begins
  #made = 0; // outputs of this reply so far
  /** @type {Map<number, number>} The end of each reply's sound so far, in the wire's samples. */
  #ends = new Map();

  /** @param {number} wireRate @param {number} contextRate */
  constructor(wireRate, contextRate) {
    this.#wireRate = wireRate;
    this.#contextRate = contextRate;
    this.#resampler = new Resampler(wireRate, contextRate);
  }

  /**
   * Take the next sound of a reply; return the part that can be played.
   * @param {number} epoch
   * @param {number} offset
   * @param {Float32Array} samples
   * @returns {Piece}
   */
  push(epoch, offset, samples) {
    if (epoch !== this.#epoch || offset > this.#next || this.#next < 0) {
      this.#epoch = epoch;
      this.#next = offset;
      this.#made = this.#resampler.reset(offset);
    }
    const fresh = samples.subarray(Math.min(samples.length, this.#next - offset)); // the rest is a repetition
    this.#next += fresh.length;
    this.#remember(epoch, this.#next);
    return this.#piece(this.#resampler.push(fresh));
  }

  /**
   * Note that a reply is complete; return its last sound.
   * @param {number} epoch
   * @returns {Piece}
   */
  finish(epoch) {
    if (epoch !== this.#epoch || this.#next < 0) return { epoch, offset: 0, samples: new Float32Array(0) };
    const piece = this.#piece(this.#resampler.flush());
    this.#next = -1;
    return piece;
  }

  /** Note that the next sound may begin anywhere: the connection was lost and is back. */
  restart() {
    this.#next = -1;
  }

  /**
   * Return how many of the wire's samples were played when `samples` of the loudspeaker's were.
   * @param {number} epoch
   * @param {number} samples
   */
  position(epoch, samples) {
    const played = Math.floor((samples * this.#wireRate) / this.#contextRate);
    return Math.min(played, this.#ends.get(epoch) ?? played);
  }

  /** Return how many of the wire's samples last as long as `samples` of the loudspeaker's. @param {number} samples */
  duration(samples) {
    return Math.ceil((samples * this.#wireRate) / this.#contextRate);
  }

  /** @param {Float32Array<ArrayBuffer>} samples @returns {Piece} */
  #piece(samples) {
    const offset = this.#made;
    this.#made += samples.length;
    return { epoch: this.#epoch, offset, samples };
  }

  /** @param {number} epoch @param {number} end */
  #remember(epoch, end) {
    this.#ends.set(epoch, Math.max(end, this.#ends.get(epoch) ?? 0));
    for (const old of this.#ends.keys()) if (old <= epoch - REMEMBERED) this.#ends.delete(old);
  }
}
