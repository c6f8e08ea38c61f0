/**
 * When each line of the captions was said. Pure.
 *
 * A person's line begins with their voice. The assistant's line begins with its first word that is heard; until then,
 * and if none is, with its text. Lines of an earlier page have no time.
 */

/** @typedef {import("../state.js").Line} Line */
/** @typedef {{ startMs: number, endMs: number }} Span milliseconds of the clock that `observe` is given */

/** The times of a page's lines. */
export class Timeline {
  /** @type {Map<number, Span & { sounded: boolean, over: boolean }>} */
  #spans = new Map();
  /** @type {Set<number>} */
  #untimed = new Set();

  /** Leave these lines without a time: they were said before this page was loaded. @param {readonly Line[]} lines */
  skip(lines) {
    for (const { id } of lines) if (!this.#spans.has(id)) this.#untimed.add(id);
  }

  /** Note the lines as they are now. @param {readonly Line[]} lines @param {number} nowMs */
  observe(lines, nowMs) {
    for (const line of lines) if (!this.#untimed.has(line.id)) this.#note(line, nowMs);
  }

  /** @param {Line} line @param {number} nowMs */
  #note({ id, role, status, heard }, nowMs) {
    const span = this.#spans.get(id) ?? { startMs: nowMs, endMs: nowMs, sounded: role === "user", over: false };
    this.#spans.set(id, span);
    if (span.over) return;
    if (!span.sounded && heard.trim()) Object.assign(span, { startMs: nowMs, sounded: true });
    span.endMs = nowMs;
    span.over = status !== "live";
  }

  /** Return a line's time, null if it has none. @param {number} id @returns {Span | null} */
  of(id) {
    const span = this.#spans.get(id);
    return span === undefined ? null : { startMs: span.startMs, endMs: span.endMs };
  }
}
