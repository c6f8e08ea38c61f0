/**
 * The loudspeaker's audio thread: it passes the page's orders to `Playback` and fills the sound card's blocks.
 *
 * The page sends orders. It gets {acks}, {begins: epoch} with a reply's first sample, {position} when asked, ten
 * times a second {figures}, and, if it asks for a recording, {played} with everything that goes to the sound card.
 */

import { loudness } from "./pcm.js";
import { Playback } from "./playback.js";

/** How often the page gets levels and buffers. */
const FIGURES_S = 0.1;

/** The length of a recording's pieces. */
const PIECE_S = 0.02;

class PlaybackProcessor extends AudioWorkletProcessor {
  #playback = new Playback(sampleRate);
  #sinceFigures = 0;
  #loudest = 0;
  /** @type {Float32Array<ArrayBuffer> | null} A recording's next piece; null: nothing is recorded. */
  #piece = null;
  #filled = 0;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => {
      if (data.do === "record") this.#beginPiece(data.on);
      this.#playback.take(data);
      this.#tellAcks(); // acks that a hold or an interruption has made due
      const { epoch, position } = this.#playback.jitter;
      if (data.do === "position") this.port.postMessage({ position: { epoch, samples: position } });
    };
  }

  /** @param {Float32Array[][]} _inputs @param {Float32Array[][]} outputs */
  process(_inputs, outputs) {
    const [block, ...others] = outputs[0];
    const { jitter } = this.#playback;
    const before = jitter.epoch;
    this.#playback.render(block);
    for (const other of others) other.set(block);
    if (jitter.epoch !== before) this.port.postMessage({ begins: jitter.epoch });
    this.#tellAcks();
    this.#tellFigures(block);
    this.#keep(block);
    return true;
  }

  /** @param {boolean} on */
  #beginPiece(on) {
    this.#piece = on ? new Float32Array(Math.round(PIECE_S * sampleRate)) : null;
    this.#filled = 0;
  }

  /** Add a block to the recording. @param {Float32Array} block */
  #keep(block) {
    for (let at = 0; at < block.length && this.#piece !== null; ) {
      const part = block.subarray(at, at + this.#piece.length - this.#filled);
      this.#piece.set(part, this.#filled);
      this.#filled += part.length;
      at += part.length;
      if (this.#filled < this.#piece.length) continue;
      this.port.postMessage({ played: this.#piece }, [this.#piece.buffer]);
      this.#beginPiece(true);
    }
  }

  #tellAcks() {
    const acks = this.#playback.jitter.takeAcks();
    if (acks.length) this.port.postMessage({ acks });
  }

  /** @param {Float32Array} block */
  #tellFigures(block) {
    this.#loudest = Math.max(this.#loudest, loudness(block));
    this.#sinceFigures += block.length;
    if (this.#sinceFigures < FIGURES_S * sampleRate) return;
    const { queued, target, underruns, starvedSamples, playing, held } = this.#playback.jitter;
    const ms = 1000 / sampleRate;
    const figures = { bufferMs: queued * ms, targetMs: target * ms, underruns, starvedMs: starvedSamples * ms };
    this.port.postMessage({ figures: { ...figures, level: this.#loudest, playing, held } });
    this.#sinceFigures = 0;
    this.#loudest = 0;
  }
}

registerProcessor("voxlane-playback", PlaybackProcessor);
