/** The connection's figures. `textsOf` is pure; `Figures` writes them into the page. */

import { part } from "./dom.js";

/** @typedef {import("../events.js").Figures} FiguresOf */
/** @typedef {import("../protocol.js").Format} Format */

/** How often figures are written: people cannot read faster. */
const EVERY_MS = 250;

/**
 * Return figures as texts, by the name of their place in the page.
 * @param {FiguresOf} figures
 * @param {{ input: Format, output: Format } | null} formats
 * @returns {{ [name: string]: string }}
 */
export function textsOf(figures, formats) {
  const { roundTripMs, bufferMs, targetMs, underruns, starvedMs, droppedMs } = figures;
  return {
    rtt: roundTripMs < 0 ? "–" : milliseconds(roundTripMs),
    buffer: milliseconds(bufferMs),
    target: milliseconds(targetMs),
    underruns: underruns ? `${underruns} · ${milliseconds(starvedMs)}` : "0",
    dropped: milliseconds(droppedMs),
    codec: formats === null ? "–" : `${format(formats.input)} → ${format(formats.output)}`,
  };
}

/** @param {number} ms */
function milliseconds(ms) {
  return ms >= 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${ms > 0 && ms < 9.5 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

/** @param {Format} format */
function format({ codec, rate }) {
  return `${codec} ${rate / 1000} kHz`;
}

/** The figures in the page. */
export class Figures {
  #writtenAt = -EVERY_MS;

  /** @param {FiguresOf} figures @param {{ input: Format, output: Format } | null} formats @param {number} now */
  show(figures, formats, now) {
    if (now - this.#writtenAt < EVERY_MS) return;
    this.#writtenAt = now;
    for (const [name, text] of Object.entries(textsOf(figures, formats))) {
      const place = part(`fig-${name}`, HTMLElement);
      if (place.textContent !== text) place.textContent = text;
    }
  }
}
