/**
 * Announcements for screen readers: whole lines, the connection's status, and notices, each once.
 *
 * It is the page's only live region. Changes that come many times a second, or while the assistant speaks, are
 * not read out. `Announcer` decides and is pure; `installAnnouncements` puts it into the page.
 */

import { noteOf } from "./captions.js";
import { make } from "./dom.js";

/** @typedef {import("../state.js").Line} Line */
/** @typedef {import("./notices.js").Notice} Notice */

/** Announcements that stay in the page: screen readers read them a moment after they were written. */
const KEPT = 3;

/** Notices that repeat the connection's status. */
const SAID_BY_LINK = new Set(["reconnecting", "resumed"]);

/** Decides what to announce. */
export class Announcer {
  #say;
  /** @type {Set<number>} Lines that were announced, or need not be. */
  #settled = new Set();
  #link = "off";
  #code = "";

  /** @param {(words: string) => void} say */
  constructor(say) {
    this.#say = say;
  }

  /** Announce something once. @param {string} words */
  say(words) {
    this.#say(words);
  }

  /** Mark these lines as announced: they belong to an old conversation. @param {readonly Line[]} lines */
  skip(lines) {
    for (const { id, status } of lines) if (status !== "live") this.#settled.add(id);
  }

  /**
   * Announce the lines that are complete; the assistant's only if its voice is not heard.
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

  /** Announce the connection's status, if it is new. @param {string} link */
  link(link) {
    const before = this.#link;
    this.#link = link;
    if (link === before) return;
    if (link === "on") this.#say("Connected");
    if (link === "trying" && before === "on") this.#say("Reconnecting");
    if (link === "off" && before === "on") this.#say("The conversation has ended");
  }

  /** Announce a notice, if it is new: of a countdown only the beginning. @param {Notice | null} notice */
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
 * Announce in an element that is there from the start: screen readers miss elements that appear already filled.
 * @param {HTMLElement} place
 */
export function installAnnouncements(place) {
  return new Announcer((words) => {
    place.append(make("p", { text: words }));
    while (place.childElementCount > KEPT) place.firstElementChild?.remove();
  });
}
