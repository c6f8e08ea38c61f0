/** The tap's thread: keeps every sample that flows into it, by the context's clock. */

/** Samples that are told at once: a few dozen messages a second. */
const BLOCK = 2048;

class Tap extends AudioWorkletProcessor {
  #samples = new Float32Array(BLOCK);
  #filled = 0;

  /** @param {Float32Array[][]} inputs */
  process([[channel]]) {
    // Nothing is connected, or it is starting: silence, so that no time is lost.
    if (channel !== undefined) this.#samples.set(channel, this.#filled);
    this.#filled += 128;
    if (this.#filled === BLOCK) {
      const frame = currentFrame + 128 - BLOCK;
      this.port.postMessage({ frame, samples: this.#samples }, [this.#samples.buffer]);
      this.#samples = new Float32Array(BLOCK);
      this.#filled = 0;
    }
    return true;
  }
}

registerProcessor("tap", Tap);
