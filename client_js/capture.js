/**
 * What a microphone's callback does: resample to the wire's rate, cut into frames, and measure their loudness.
 *
 * A muted microphone sends silence, because a pause ends a turn.
 */

import { OnsetDetector } from "./onset.js";
import { loudness, toPcm16 } from "./pcm.js";
import { Resampler } from "./resample.js";

/**
 * `onset`: a voice seems to begin here; `quiet`: the frame is as quiet as the room.
 * @typedef {{ pcm: Uint8Array<ArrayBuffer>, level: number, onset: boolean, quiet?: boolean }} Frame
 */

/** Turns the sound card's blocks into frames at the wire's rate. */
export class Capture {
  muted = false;
  #resampler;
  #onset = new OnsetDetector();
  #frame;
  #filled = 0;

  /** @param {number} rate @param {number} wireRate @param {number} frameSamples */
  constructor(rate, wireRate, frameSamples) {
    this.#resampler = new Resampler(rate, wireRate);
    this.#frame = new Float32Array(frameSamples);
  }

  /**
   * Take the sound card's next samples; return the frames that they complete.
   * @param {Float32Array} block
   * @returns {Frame[]}
   */
  push(block) {
    const samples = this.#resampler.push(this.muted ? new Float32Array(block.length) : block);
    const frames = [];
    for (let at = 0; at < samples.length; ) {
      const part = samples.subarray(at, at + this.#frame.length - this.#filled);
      this.#frame.set(part, this.#filled);
      this.#filled += part.length;
      at += part.length;
      if (this.#filled === this.#frame.length) frames.push(this.#take());
    }
    return frames;
  }

  /** @returns {Frame} */
  #take() {
    this.#filled = 0;
    const level = loudness(this.#frame);
    const onset = this.#onset.push(level);
    return { pcm: toPcm16(this.#frame), level, onset, quiet: this.#onset.quiet };
  }
}
