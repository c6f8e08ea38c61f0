/**
 * What a loudspeaker's callback does: take samples from the jitter buffer, duck, and smooth edges so that none clicks.
 *
 * An edge (hold, release, interruption, underrun) is a jump of the waveform. The output is the samples plus a
 * correction that begins as large as the jump and decays within milliseconds: no sample is left out, repeated or
 * delayed.
 */

import { JitterBuffer } from "./jitter.js";

/** Time constant of the correction: too short to be heard as a fade, slow enough not to click. */
const SOFTENING_S = 0.0007;

/** Smaller corrections are dropped: half a step of 16 bits. */
const INAUDIBLE = 1 / 65536;

/** The assistant's loudness while the person seems to begin to speak: 15 dB down, as the server asks for. */
const DUCKED = 0.178;

/** How fast the loudness gets there and back. */
const DUCKING_S = 0.015;

/** How long it stays there if the server hears no voice: the server lowers or holds the reply well before. */
const DUCKED_S = 0.6;

/**
 * The page's orders to the loudspeaker.
 * @typedef {{ do: "push", epoch: number, offset: number, samples: Float32Array }
 *   | { do: "finish", epoch: number, offset: number, samples: Float32Array, end: number }
 *   | { do: "lower", epoch: number, gain: number }
 *   | { do: "hold" | "release" | "interrupt", epoch: number }
 *   | { do: "restart", held: boolean }
 *   | { do: "record", on: boolean }
 *   | { do: "reset" | "duck" | "position" }} Order
 */

/** Turns the page's orders into the sound card's blocks. */
export class Playback {
  #rate;
  #gain = 1;
  #duckedFor = Infinity; // samples since the page has asked for ducking, on a guess
  #lowered = { epoch: 0, gain: 1 }; // the reply that the server has lowered
  #last = 0; // the last sample played
  #flowing = false; // whether the last sample belonged to a reply
  #edge = false; // whether the next sample does not continue the last one
  #correction = 0;
  #decay;
  #step;

  /** @param {number} rate */
  constructor(rate) {
    this.jitter = new JitterBuffer(rate);
    this.#rate = rate;
    this.#decay = Math.exp(-1 / (SOFTENING_S * rate));
    this.#step = (1 - DUCKED) / (DUCKING_S * rate);
  }

  /** Carry out an order. @param {Order} order */
  take(order) {
    const { jitter } = this;
    if (order.do === "interrupt" || order.do === "restart" || order.do === "reset") this.#edge = true;
    if (order.do === "restart" || order.do === "reset") this.#raise(Infinity);
    switch (order.do) {
      case "push":
        return jitter.push(order.epoch, order.offset, order.samples);
      case "finish": // the end is noted first, so that the last few samples are no underrun
        jitter.finish(order.epoch, order.end);
        return jitter.push(order.epoch, order.offset, order.samples);
      case "lower":
        if (order.epoch >= jitter.epoch) this.#lowered = { epoch: order.epoch, gain: Math.min(1, order.gain) };
        this.#duckedFor = Infinity; // from now on the server decides
        return undefined;
      case "hold":
        return jitter.hold(order.epoch);
      case "release":
        this.#raise(order.epoch);
        return jitter.release(order.epoch);
      case "interrupt":
        this.#raise(order.epoch);
        return jitter.interrupt(order.epoch);
      case "restart":
        return jitter.restart(order.held);
      case "reset":
        return jitter.reset();
      case "duck":
        if (jitter.playing && !jitter.held) this.#duckedFor = 0;
        return undefined;
      default: // position and record: the worklet answers them
        return undefined;
    }
  }

  /**
   * Fill a block.
   * @param {Float32Array} block not empty
   * @returns {number} how many of its samples belong to a reply
   */
  render(block) {
    const filled = this.jitter.pull(block);
    this.#duck(block, filled);
    if (this.#edge || this.#flowing !== filled > 0) this.#correction = this.#last - block[0];
    this.#soften(block, 0, filled);
    if (filled > 0 && filled < block.length) this.#correction = block[filled - 1];
    this.#soften(block, filled, block.length);
    this.#last = block[block.length - 1];
    this.#flowing = filled === block.length;
    this.#edge = false;
    return filled;
  }

  /** Return to full loudness, unless a later reply is lowered. @param {number} epoch */
  #raise(epoch) {
    this.#duckedFor = Infinity;
    if (epoch >= this.#lowered.epoch) this.#lowered = { epoch: 0, gain: 1 };
  }

  /** @param {Float32Array} block @param {number} filled */
  #duck(block, filled) {
    const lowered = this.#lowered.epoch === this.jitter.epoch ? this.#lowered.gain : 1;
    for (let place = 0; place < filled; place++) {
      const goal = this.#duckedFor < DUCKED_S * this.#rate ? Math.min(DUCKED, lowered) : lowered;
      this.#duckedFor += 1;
      this.#gain += Math.max(-this.#step, Math.min(this.#step, goal - this.#gain));
      block[place] *= this.#gain;
    }
  }

  /** @param {Float32Array} block @param {number} from @param {number} to */
  #soften(block, from, to) {
    for (let place = from; place < to && this.#correction; place++) {
      block[place] += this.#correction;
      this.#correction *= this.#decay;
      if (Math.abs(this.#correction) < INAUDIBLE) this.#correction = 0;
    }
  }
}
