/** Loudness meters for both sides: in decibels, quick to rise and slow to fall. */

/** The range of a meter, in decibels of full scale. */
const FLOOR_DB = -54;
const CEILING_DB = -9;

/** Share of the way down that a meter goes at each reading. */
const FALL = 0.18;

/** How often the value for screen readers is renewed. */
const SPOKEN_MS = 250;

/** Return a loudness of 0 to 1 as a meter value of 0 to 100. @param {number} level root mean square */
export function percent(level) {
  if (!(level > 0)) return 0;
  const share = (20 * Math.log10(level) - FLOOR_DB) / (CEILING_DB - FLOOR_DB);
  return 100 * Math.min(1, Math.max(0, share));
}

/** Return a meter's next value. @param {number} shown @param {number} wanted */
export function ease(shown, wanted) {
  const next = wanted > shown ? wanted : shown + FALL * (wanted - shown);
  return next < 0.5 ? 0 : next;
}

/** One meter in the page. */
export class Meter {
  value = 0;
  #element;
  #drawn = -1;
  #spokenAt = 0;

  /** @param {HTMLElement} element */
  constructor(element) {
    this.#element = element;
  }

  /** @param {number} level @param {number} now */
  show(level, now) {
    this.value = ease(this.value, percent(level));
    const drawn = Math.round(this.value);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.#element.style.setProperty("--level", String(drawn / 100));
    if (now - this.#spokenAt < SPOKEN_MS && drawn !== 0) return;
    this.#spokenAt = now;
    this.#element.setAttribute("aria-valuenow", String(drawn));
  }
}
