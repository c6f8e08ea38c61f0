/**
 * A bar for each turn, from the person's last sound to the first sample they hear: the time of each step, and the sum.
 *
 * `segments` and `scale` are pure; `LatencyBars` draws them.
 */

import { make } from "./dom.js";

/** @typedef {import("../state.js").TurnLatency} TurnLatency */
/** @typedef {{ part: string, label: string, lastsMs: number }} Segment a step and its own time, in whole numbers */

/** @type {{ part: string, field: Exclude<keyof TurnLatency, "turn">, label: string }[]} */
const PARTS = [
  { part: "turn_end", field: "turn_end_ms", label: "to know that you had finished" },
  { part: "words", field: "words_ms", label: "to write your words down" },
  { part: "first_token", field: "first_token_ms", label: "to think of the first words" },
  { part: "first_sample", field: "first_sample_ms", label: "to make the first sound" },
  { part: "played", field: "heard_ms", label: "to play it" },
];

/** Turns that are shown: few enough to leave room for the rest of the panel on a laptop. */
const SHOWN = 6;

/** The shortest time that fills the whole width, so that a quick turn looks quick. */
const FULL_MS = 800;

/**
 * Return a turn's steps in their order: words may settle after the first token, which may be generated ahead of them.
 * @param {TurnLatency} latency
 * @returns {Segment[]}
 */
export function segments(latency) {
  const happened = PARTS.map(({ part, field, label }) => ({ part, label, atMs: Math.round(latency[field]) }))
    .filter(({ atMs }) => atMs > 0) // a typed turn ends at once
    .sort((one, other) => one.atMs - other.atMs); // stable: simultaneous steps stay in the order above
  return happened.map(({ part, label, atMs }, place) => {
    return { part, label, lastsMs: atMs - (place ? happened[place - 1].atMs : 0) };
  });
}

/** Return how long the turn took. @param {TurnLatency} latency */
export function totalMs(latency) {
  return segments(latency).reduce((sum, { lastsMs }) => sum + lastsMs, 0);
}

/** Return the time that the whole width represents. @param {readonly TurnLatency[]} turns */
export function scale(turns) {
  return Math.max(FULL_MS, ...turns.map(totalMs));
}

/** The bars in the page. */
export class LatencyBars {
  #list;
  #shown = "";

  /** @param {HTMLElement} list */
  constructor(list) {
    this.#list = list;
  }

  /** @param {readonly TurnLatency[]} all */
  show(all) {
    const turns = all.slice(-SHOWN).filter((turn) => segments(turn).length);
    const shown = JSON.stringify(turns);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const fullMs = scale(turns);
    this.#list.replaceChildren(...turns.reverse().map((turn) => bar(turn, fullMs))); // the newest first
  }
}

/** @param {TurnLatency} latency @param {number} fullMs */
function bar(latency, fullMs) {
  const item = make("li", { data: { turn: String(latency.turn) } });
  const track = make("div", { className: "bar" });
  const sum = make("p", { className: "sum" });
  const parts = segments(latency);
  const pending = parts.length === 1 && parts[0].part === "played"; // the server sends the others at the reply's end
  for (const segment of parts) {
    track.append(piece(segment, fullMs, pending));
    sum.append(pending ? make("span", { text: "steps follow" }) : figure(segment));
  }
  const total = `${totalMs(latency)} ms`;
  sum.append(make("strong", { text: latency.heard_ms < 0 ? `${total} so far` : total }));
  item.append(make("p", { className: "turn", text: `Turn ${latency.turn}` }), track, sum);
  return item;
}

/** @param {Segment} segment @param {number} fullMs @param {boolean} pending */
function piece({ part, label, lastsMs }, fullMs, pending) {
  const made = make("span", { className: "seg", data: { part } });
  made.classList.toggle("pending", pending);
  made.style.setProperty("--share", `${((100 * lastsMs) / fullMs).toFixed(2)}%`);
  made.title = `${label}: ${lastsMs} ms`;
  return made;
}

/** @param {Segment} segment */
function figure({ part, label, lastsMs }) {
  const made = make("span", { className: "figure", data: { part }, text: String(lastsMs) });
  made.title = label;
  made.prepend(make("span", { className: "sr", text: `${label}: ` }));
  return made;
}
