/**
 * Whether a person seems to begin to speak, from how loud their microphone is.
 *
 * It only serves to duck the loudspeaker a moment before the server's verdict: it may be wrong, and decides nothing. A
 * voice is what stays well above the room's noise for some frames; the room's noise is what the quiet frames have.
 */

/** How far above the noise a voice is: 12 dB; and the quietest that counts at all, -46 dB of full scale. */
const ABOVE = 4;
const QUIETEST = 0.005;

/** Frames of 20 ms that must be loud: one may be a click. */
const FRAMES = 2;

/** Frames that must be quiet before there can be another onset. */
const PAUSE = 10;

/** How the noise is followed: down at once by half, up by a twentieth a frame, so that a voice hardly moves it. */
const FALLING = 0.5;
const RISING = 0.05;

/** Follows one microphone, frame by frame. */
export class OnsetDetector {
  #noise = QUIETEST / ABOVE;
  #loud = 0;
  #quiet = PAUSE;

  /**
   * Take the next frame's loudness (root mean square); return whether a voice begins with it.
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
