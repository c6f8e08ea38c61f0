/**
 * Captions: a line for each turn, with its heard and its unheard part.
 *
 * `noteOf` is pure; `Captions` keeps a list in the page equal to the lines and touches only what has changed.
 */

import { make } from "./dom.js";
import { timeOfDay } from "./exports.js";

/** @typedef {import("../state.js").Line} Line */

/** New lines are scrolled to if the reader is this near the end, in pixels. */
const NEAR = 80;

/** Return the note beside a line's text. @param {Pick<Line, "role" | "status" | "unheard">} line */
export function noteOf({ role, status, unheard }) {
  if (status === "failed") return role === "user" ? "not understood" : "broke off";
  if (status === "interrupted") return unheard.trim() ? "interrupted: grey was not heard" : "interrupted";
  return "";
}

/** A list of lines, in a box that scrolls. */
export class Captions {
  #box;
  #list;
  #follows = true; // whether the reader is at the end
  #size = ""; // the box's size when it was last measured
  /** @type {Map<number, Entry>} */
  #entries = new Map();

  /** @param {HTMLElement} box @param {HTMLElement} list */
  constructor(box, list) {
    this.#box = box;
    this.#list = list;
    box.addEventListener("scroll", () => {
      if (this.#size !== sizeOf(box)) return; // a telephone was rotated: the reader has not scrolled
      this.#follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    });
    new ResizeObserver(() => {
      this.#size = sizeOf(box);
      this.#follow();
    }).observe(box);
  }

  /**
   * Show these lines and no others.
   * @param {readonly Line[]} lines @param {(id: number) => number | undefined} timeOf when a line began, if that is known
   */
  show(lines, timeOf) {
    const left = new Set(this.#entries.keys());
    let changed = false;
    for (const line of lines) {
      left.delete(line.id);
      if (!this.#entries.has(line.id)) this.#entries.set(line.id, new Entry(line, this.#list));
      changed = this.#entries.get(line.id)?.update(line, timeOf(line.id)) || changed;
    }
    for (const id of left) {
      this.#entries.get(id)?.item.remove();
      this.#entries.delete(id);
    }
    if (changed) this.#follow();
  }

  /** Add a divider after the lines so far. @param {string} words */
  divide(words) {
    if (!this.#entries.size) return;
    this.#list.append(make("li", { className: "divider", text: words }));
    this.#follow();
  }

  #follow() {
    if (this.#follows) this.#box.scrollTop = this.#box.scrollHeight;
  }
}

/** @param {HTMLElement} box */
function sizeOf({ clientWidth, clientHeight }) {
  return `${clientWidth}×${clientHeight}`;
}

/** One line in the page. */
class Entry {
  #heard = make("span", { className: "heard" });
  #unheard = make("span", { className: "unheard" });
  #note = make("span", { className: "note" });
  #when = make("time", { className: "when" });
  #shown = "";

  /** @param {Line} line @param {HTMLElement} list */
  constructor({ role }, list) {
    this.item = make("li", { data: { role } });
    const text = make("p");
    text.append(this.#heard, this.#unheard);
    this.item.append(make("span", { className: "who", text: role === "user" ? "You" : "Assistant" }), text, this.#note);
    this.item.append(this.#when);
    list.append(this.item);
  }

  /** Show a line; return whether anything has changed. @param {Line} line @param {number} [atMs] */
  update(line, atMs) {
    const time = atMs === undefined ? "" : timeOfDay(new Date(atMs));
    const shown = `${line.status}\n${time}\n${line.heard}\n${line.unheard}`;
    if (shown === this.#shown) return false;
    this.#shown = shown;
    this.#heard.textContent = line.heard;
    this.#unheard.textContent = line.unheard;
    this.#note.textContent = noteOf(line);
    this.#when.textContent = time;
    this.item.dataset.status = line.status;
    return true;
  }
}
