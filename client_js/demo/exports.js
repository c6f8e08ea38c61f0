/** A conversation as a file: text, JSON or SRT. Pure. */

/** @typedef {import("../state.js").Line} Line */
/** @typedef {import("./timeline.js").Span} Span */
/** @typedef {Pick<Line, "role" | "status" | "heard" | "unheard"> & { span: Span | null }} TimedLine */

/**
 * @typedef {object} Talk
 * @property {readonly TimedLine[]} lines
 * @property {number} zeroMs the time of the recording's first sample, or of the first line: SRT counts from it
 * @property {import("./models.js").Models} models
 * @property {Date} now
 */

/** @typedef {{ name: string, type: string, parts: BlobPart[] }} SavedFile */

/** Subtitles that are shorter than this cannot be read. */
const SHORTEST_MS = 500;

const NAMES = { user: "You", assistant: "Assistant" };

/** Return a file's name without its ending. @param {Date} now */
export function baseName(now) {
  return `voxlane-${now.toISOString().slice(0, 16).replace("T", "-").replace(":", "")}`;
}

/** Return a conversation as text, a line for each turn. @param {Talk} talk @returns {SavedFile} */
export function asText({ lines, now }) {
  const day = now.toISOString().slice(0, 16).replace("T", " ");
  const head = `A conversation with voxlane, ${day} UTC\nIn brackets: what was not heard.\n\n`;
  const told = lines.map((line) => `${stamp(line.span)}${NAMES[line.role]}: ${saidOf(line)}\n`);
  return { name: `${baseName(now)}.txt`, type: "text/plain", parts: [head, ...told] };
}

/** @param {TimedLine} line */
function saidOf({ role, status, heard, unheard }) {
  const cut = role === "assistant" && status !== "done" && unheard.trim() !== "";
  return (cut ? `${heard.trim()} [${unheard.trim()}]` : heard + unheard).trim();
}

/** @param {Span | null} span */
function stamp(span) {
  return span === null ? "" : `${timeOfDay(new Date(span.startMs))}  `;
}

/** Return hours, minutes and seconds, as the clock on the wall. @param {Date} time */
export function timeOfDay(time) {
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** Return a conversation as JSON, with everything that is known of each line. @param {Talk} talk @returns {SavedFile} */
export function asJson({ lines, zeroMs, models, now }) {
  const told = lines.map(({ role, status, heard, unheard, span }) => ({
    role, status, heard, unheard,
    start: span && new Date(span.startMs).toISOString(),
    end: span && new Date(span.endMs).toISOString(),
    start_s: span && (span.startMs - zeroMs) / 1000,
    end_s: span && (span.endMs - zeroMs) / 1000,
  }));
  const text = `${JSON.stringify({ saved: now.toISOString(), models, lines: told }, null, 2)}\n`;
  return { name: `${baseName(now)}.json`, type: "application/json", parts: [text] };
}

/** Return what was heard of a conversation as subtitles. @param {Talk} talk @returns {SavedFile} */
export function asSrt({ lines, zeroMs, now }) {
  const shown = lines
    .map((line) => ({ span: line.span, words: `${NAMES[line.role]}: ${line.heard.trim()}`, heard: line.heard.trim() }))
    .filter(({ span, heard }) => span !== null && span.endMs >= zeroMs && heard !== ""); // of this conversation
  const blocks = shown.map(({ span, words }, place) => {
    const { startMs, endMs } = /** @type {Span} */ (span);
    const start = Math.max(0, startMs - zeroMs);
    const end = Math.max(start + SHORTEST_MS, endMs - zeroMs);
    return `${place + 1}\n${srtTime(start)} --> ${srtTime(end)}\n${words.replaceAll(/\s*\n\s*/g, " ")}\n\n`;
  });
  return { name: `${baseName(now)}.srt`, type: "application/x-subrip", parts: blocks };
}

/** @param {number} ms */
function srtTime(ms) {
  const [whole, rest] = [Math.floor(Math.round(ms) / 1000), Math.round(ms) % 1000];
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return `${parts.map((part) => String(part).padStart(2, "0")).join(":")},${String(rest).padStart(3, "0")}`;
}
