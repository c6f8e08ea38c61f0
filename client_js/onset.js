/**
 * Guess from the microphone's loudness whether a person begins to speak.
 *
 * The guess only ducks the loudspeaker a moment before the server's verdict: it may be wrong and decides nothing. A
 * voice stays well above the room's noise for some frames; the noise level is learnt from the quiet frames.
 */

/** A voice is 12 dB above the noise, and at least -46 dB of full scale. */
const ABOVE = 4;
const QUIETEST = 0.005;

/** Frames of 20 ms that must be loud: a single one may be a click. */
const FRAMES = 2;

/** Frames that must be quiet before another onset. */
const PAUSE = 10;

/** How the noise level follows a frame: down by half the way, up by a twentieth, so that a voice hardly moves it. */
const FALLING = 0.5;
const RISING = 0.05;

/** Follows one microphone, frame by frame. */
export class OnsetDetector {
  #noise = QUIETEST / ABOVE;
  #loud = 0;
  #quiet = PAUSE;

  /** Whether the last frame was as quiet as the room. */
  get quiet() {
    return this.#loud === 0;
  }

  /**
   * Take the next frame's loudness (root mean square); return whether a voice begins there.
   * @param {number} loudness
   */
  push(loudness) {
    const voiced = loudness > Math.max(QUIETEST, ABOVE * this.#noise);
    if (loudness < this.#noise) this.#noise += FALLING * (loudness - this.#noise);
    else this.#noise += RISING * Math.min(loudness - this.#noise, this.#noise);
    this.#noise = Math.max(this.#noise, 1e-5);
    if (!voiced) {
      this.#loud = 0;
      this.#quiet += 1;
      return false;
    }
    this.#loud += 1;
    if (this.#loud !== FRAMES) return false;
    const begins = this.#quiet >= PAUSE;
    this.#quiet = 0;
    return begins;
  }
}
