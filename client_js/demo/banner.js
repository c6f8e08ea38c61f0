/** The notice above the conversation: it shows the notice it is given and passes clicks on. */

import { part } from "./dom.js";

/** @typedef {import("./notices.js").Notice} Notice */

/** The banner in the page. */
export class Banner {
  #box = part("banner", HTMLElement);
  #text = part("banner-text", HTMLElement);
  #action = part("banner-action", HTMLButtonElement);
  /** @type {Notice | null} */
  #notice = null;

  /** @param {(action: import("./notices.js").Action) => void} act @param {() => void} dismiss */
  constructor(act, dismiss) {
    this.#action.addEventListener("click", () => this.#notice && act(this.#notice.action));
    part("banner-close", HTMLButtonElement).addEventListener("click", dismiss);
  }

  /** @param {Notice | null} notice */
  show(notice) {
    this.#notice = notice;
    this.#keepFocus(notice);
    this.#box.hidden = notice === null;
    if (notice === null) {
      delete this.#box.dataset.code;
      return;
    }
    this.#box.dataset.code = notice.code;
    this.#box.dataset.tone = notice.tone;
    this.#text.textContent = [notice.text, notice.aside].filter(Boolean).join(" ");
    this.#action.textContent = notice.label;
    this.#action.hidden = notice.action === "none";
  }

  /**
   * Move the focus before its button vanishes. Not after a touch: that would open the on-screen keyboard.
   * @param {Notice | null} notice
   */
  #keepFocus(notice) {
    const focused = document.activeElement;
    const goes = notice === null ? this.#box.contains(focused) : focused === this.#action && notice.action === "none";
    if (goes && focused?.matches(":focus-visible")) part("text", HTMLInputElement).focus();
  }
}
