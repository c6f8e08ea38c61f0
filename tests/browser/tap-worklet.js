/**
 * The tap's thread: keeps every sample that flows into it, by the context's clock.
 *
 * `currentFrame` stands still for blocks in which the page holds the context's lock, and then catches up. So the tap
 * counts for itself, and of what the clock says about its beginning the latest is true. Were it to become later on
 * the way, blocks would have been left out.
 */

/** Samples that are told at once: a few dozen messages a second. */
const BLOCK = 2048;

class Tap extends AudioWorkletProcessor {
  #samples = new Float32Array(BLOCK);
  #filled = 0;
  #told = 0;
  #began = 0;

  /** @param {Float32Array[][]} inputs */
  process([[channel]]) {
    this.#began = Math.max(this.#began, currentFrame - this.#told - this.#filled);
    // Nothing is connected, or it is starting: silence, so that no time is lost.
    if (channel !== undefined) this.#samples.set(channel, this.#filled);
    this.#filled += 128;
    if (this.#filled === BLOCK) {
      const { buffer } = this.#samples;
      this.port.postMessage({ began: this.#began, offset: this.#told, samples: this.#samples }, [buffer]);
      this.#samples = new Float32Array(BLOCK);
      this.#filled = 0;
      this.#told += BLOCK;
    }
    return true;
  }
}

registerProcessor("tap", Tap);
