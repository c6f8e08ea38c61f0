/**
 * What screen readers say of their own accord: whole lines, how the connection is, and notices, each once.
 *
 * It is the page's one live region. What changes many times a second, or while the assistant's voice is to be heard, is
 * not read out. `Announcer` decides and is pure; `installAnnouncements` gives it a place in the page.
 */

import { noteOf } from "./captions.js";
import { make } from "./dom.js";

/** @typedef {import("../state.js").Line} Line */
/** @typedef {import("./notices.js").Notice} Notice */

/** Announcements that stay in the page: readers take them a moment after they were written. */
const KEPT = 3;

/** Notices that the connection's own words say as well. */
const SAID_BY_LINK = new Set(["reconnecting", "resumed"]);

/** Decides what is worth saying. */
export class Announcer {
  #say;
  /** @type {Set<number>} Lines that are said, or need not be. */
  #settled = new Set();
  #link = "off";
  #code = "";

  /** @param {(words: string) => void} say */
  constructor(say) {
    this.#say = say;
  }

  /** Say something once. @param {string} words */
  say(words) {
    this.#say(words);
  }

  /** Take these lines as known: they are an old conversation's. @param {readonly Line[]} lines */
  skip(lines) {
    for (const { id, status } of lines) if (status !== "live") this.#settled.add(id);
  }

  /**
   * Say the lines that are complete, the assistant's only where its voice does not.
   * @param {readonly Line[]} lines @param {{ audible: boolean }} how
   */
  lines(lines, { audible }) {
    for (const line of lines) {
      if (line.status === "live" || this.#settled.has(line.id)) continue;
      if (line.role === "user") this.#say(told("You", line));
      else if (!audible) this.#say(told("Assistant", line));
    }
    this.#settled = new Set(lines.filter(({ status }) => status !== "live").map(({ id }) => id));
  }

  /** Say how the connection is, if that is new. @param {string} link */
  link(link) {
    const before = this.#link;
    this.#link = link;
    if (link === before) return;
    if (link === "on") this.#say("Connected");
    if (link === "trying" && before === "on") this.#say("Reconnecting");
    if (link === "off" && before === "on") this.#say("The conversation has ended");
  }

  /** Say a notice, if it is another than before: of a countdown only the beginning. @param {Notice | null} notice */
  notice(notice) {
    const code = notice?.code ?? "";
    if (notice !== null && code !== this.#code && !SAID_BY_LINK.has(code)) this.#say(notice.text);
    this.#code = code;
  }
}

/** @param {string} who @param {Line} line */
function told(who, line) {
  const note = noteOf(line);
  return `${who}: ${(line.heard + line.unheard).trim()}${note ? ` (${note})` : ""}`;
}

/**
 * Say things in an element that is there from the beginning: readers miss what appears already filled.
 * @param {HTMLElement} place
 */
export function installAnnouncements(place) {
  return new Announcer((words) => {
    place.append(make("p", { text: words }));
    while (place.childElementCount > KEPT) place.firstElementChild?.remove();
  });
}
