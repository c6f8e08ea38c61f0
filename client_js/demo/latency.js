/**
 * A bar for each turn: from the person's last sound to the first sample they hear, and what happened between.
 *
 * `segments` and `scale` are pure; `LatencyBars` draws them.
 */

import { make } from "./dom.js";

/** @typedef {import("../state.js").TurnLatency} TurnLatency */
/** @typedef {{ part: string, label: string, atMs: number, lastsMs: number }} Segment */

/** @type {{ part: string, field: Exclude<keyof TurnLatency, "turn">, label: string }[]} */
const PARTS = [
  { part: "turn_end", field: "turn_end_ms", label: "turn over" },
  { part: "words", field: "words_ms", label: "words recognised" },
  { part: "first_token", field: "first_token_ms", label: "first token" },
  { part: "first_sample", field: "first_sample_ms", label: "first sound made" },
  { part: "played", field: "heard_ms", label: "first sound played" },
];

/** Turns that are shown: as many as leave room for what is below them on a laptop. */
const SHOWN = 6;

/** The shortest time that fills the whole width: a quick turn shall look quick. */
const FULL_MS = 800;

/** The share of the width below which a number does not fit into its segment. */
const NARROW = 0.15;

/**
 * Return what happened in a turn, in its order: words may be settled after the first token, which is thought ahead.
 * @param {TurnLatency} latency
 * @returns {Segment[]}
 */
export function segments(latency) {
  const happened = PARTS.map(({ part, field, label }) => ({ part, label, atMs: latency[field] }))
    .filter(({ atMs }) => atMs > 0) // what is typed is over at once
    .sort((one, other) => one.atMs - other.atMs); // stable: what comes at once stays in the order above
  return happened.map((one, place) => ({ ...one, lastsMs: one.atMs - (place ? happened[place - 1].atMs : 0) }));
}

/** Return when a turn's last part came. @param {TurnLatency} latency */
export function totalMs(latency) {
  return segments(latency).at(-1)?.atMs ?? 0;
}

/** Return the time that the whole width stands for. @param {readonly TurnLatency[]} turns */
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
  const heard = latency.heard_ms >= 0;
  const head = make("p", { className: "bar-head", text: `Turn ${latency.turn}` });
  const total = `${Math.round(totalMs(latency))} ms${heard ? "" : " so far"}`;
  head.append(make("strong", { text: total }));
  const track = make("div", { className: "bar" });
  for (const segment of segments(latency)) track.append(piece(segment, fullMs));
  item.append(head, track);
  return item;
}

/** @param {Segment} segment @param {number} fullMs */
function piece({ part, label, atMs, lastsMs }, fullMs) {
  const share = lastsMs / fullMs;
  const made = make("span", { className: "seg", data: { part } });
  made.classList.toggle("thin", share < NARROW);
  made.classList.toggle("pending", part === "played" && lastsMs === atMs); // what led to it is told later
  made.style.setProperty("--share", `${(100 * share).toFixed(2)}%`);
  made.title = `${label} after ${Math.round(atMs)} ms`;
  made.append(make("span", { className: "sr", text: `${label}: ` }), make("span", { text: `${Math.round(atMs)} ms` }));
  return made;
}
