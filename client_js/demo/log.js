/**
 * The event log: the server's messages and the connection's changes, one line each, the newest last.
 *
 * `describe` and `clock` are pure. Sound, with fifty messages a second, and pings are left out. Tokens and
 * keys are never written.
 */

import { make } from "./dom.js";

/** @typedef {import("../protocol.js").ServerMessage} ServerMessage */

/** Lines that are kept. */
const MOST = 500;

/** Characters of a text that are shown. */
const SHOWN = 200;

/** Return a message as a line, null if it does not go into the log. @param {ServerMessage} message */
export function describe(message) {
  switch (message.name) {
    case "audio":
    case "pong":
      return null;
    case "ready": {
      const { session, resumed, state } = message.ready;
      return `ready ${session} · ${resumed ? "taken up again" : "new"} · ${state}`;
    }
    case "configured":
      return "configured";
    case "unknown":
      return `${message.called} (not known to this page)`;
    default: {
      const { name, seq: _seq, ...fields } = message;
      return [name, ...Object.entries(fields).map(([key, value]) => `${key}=${shown(value)}`)].join(" ");
    }
  }
}

/** @param {unknown} value */
function shown(value) {
  if (typeof value === "number") return String(Math.round(value * 1000) / 1000);
  if (typeof value !== "string") return String(value);
  return JSON.stringify(value.length > SHOWN ? `${value.slice(0, SHOWN)}…` : value);
}

/** Return a time of day as hours, minutes, seconds and thousandths. @param {Date} time */
export function clock(time) {
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const thousandths = String(time.getMilliseconds()).padStart(3, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${thousandths}`;
}

/** The log in the page. */
export class EventLog {
  #list;
  /** @type {{ epoch: number, text: string, place: HTMLElement } | null} The reply whose text came last. */
  #reply = null;

  /** @param {HTMLElement} list */
  constructor(list) {
    this.#list = list;
  }

  /** Log a message; a reply's words, which come one by one, share a line. @param {ServerMessage} message */
  take(message) {
    const line = describe(message);
    if (line === null) return;
    if (message.name !== "reply_text") {
      this.add(line, message.name === "error" ? "fault" : "in");
      return;
    }
    const { epoch, text } = message;
    if (this.#reply?.epoch !== epoch) this.#reply = { epoch, text: "", place: this.add(line, "in") };
    this.#reply.text += text;
    this.#reply.place.textContent = describe({ ...message, text: this.#reply.text });
  }

  /** @param {string} line @param {"in" | "line" | "fault"} [kind] of the server, of the connection, or a fault */
  add(line, kind = "line") {
    const follows = this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight < 40;
    const item = make("li", { data: { kind } });
    const place = make("span", { text: line });
    item.append(make("time", { text: clock(new Date()) }), place);
    this.#list.append(item);
    while (this.#list.childElementCount > MOST) this.#list.firstElementChild?.remove();
    if (follows) this.#list.scrollTop = this.#list.scrollHeight;
    return place;
  }

  /** Scroll to the newest line. */
  scroll() {
    this.#list.scrollTop = this.#list.scrollHeight;
  }

  clear() {
    this.#reply = null;
    this.#list.replaceChildren();
  }
}
