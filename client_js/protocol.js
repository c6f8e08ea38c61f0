/**
 * The native dialect, `voxlane.v1`: the server's messages as objects, the client's as frames, and what a close means.
 *
 * docs/protocol.md is its specification. A field of the wrong type is an error; unknown messages are passed on and may
 * be ignored. `connection` and `state` act on the messages.
 */

import { decode, encode } from "./msgpack.js";

/** @typedef {import("./msgpack.js").Value} Value */
/** @typedef {import("./msgpack.js").Dictionary} Dictionary */
/** @typedef {"listening" | "hearing" | "thinking" | "speaking" | "held"} StateName */
/** @typedef {{ codec: string, rate: number }} Format */
/** @typedef {{ role: string, content: string, tool_calls?: Value, call_id?: string }} HistoryEntry */
/** @typedef {[start: number, end: number, startSample: number, endSample: number]} SpokenWord */

/**
 * @typedef {object} Ready
 * @property {string} session
 * @property {string} token
 * @property {boolean} resumed
 * @property {StateName} state
 * @property {Format} input
 * @property {Format} output
 * @property {Dictionary} config
 * @property {Dictionary} capabilities
 * @property {{ resume_s: number, frame_bytes: number, [key: string]: Value }} limits
 * @property {HistoryEntry[]} history
 * @property {[epoch: number, samples: number] | null} played
 * @property {string} at the server's name at its balancer; "" if it has none
 * @property {string[]} recorded what the server's operator keeps of the conversation: `audio`, `transcript`
 */

/**
 * One of the server's messages. `seq` is 0 for an error outside any conversation.
 * @typedef {{ seq: number } & (
 *   | { name: "ready", ready: Ready }
 *   | { name: "state", state: StateName }
 *   | { name: "speech_started", turn: number, at_s: number }
 *   | { name: "speech_stopped", turn: number, at_s: number }
 *   | { name: "user_words", turn: number, settled: string, tail: string }
 *   | { name: "user_turn", turn: number, text: string }
 *   | { name: "reply", epoch: number, turn: number }
 *   | { name: "reply_text", epoch: number, text: string }
 *   | { name: "audio", epoch: number, offset: number, data: Uint8Array, words: SpokenWord[] }
 *   | { name: "audio_done", epoch: number, samples: number }
 *   | { name: "duck", epoch: number, gain: number }
 *   | { name: "hold", epoch: number }
 *   | { name: "release", epoch: number }
 *   | { name: "interrupted", epoch: number, heard: string, samples: number }
 *   | { name: "reply_done", epoch: number, text: string }
 *   | { name: "turn_done", turn: number, how: "done" | "interrupted" | "failed" }
 *   | { name: "tool_call", epoch: number, call_id: string, tool: string, arguments: string }
 *   | { name: "latency", turn: number, turn_end_ms: number, words_ms: number, first_token_ms: number,
 *       first_sample_ms: number, first_frame_ms: number }
 *   | { name: "barge_in", epoch: number, hold_ms: number, verdict_ms: number, committed: boolean,
 *       ducked_ms: number, muted_ms: number }
 *   | { name: "hard_to_hear" }
 *   | { name: "configured", config: Dictionary }
 *   | { name: "pong", mark: number, audio_s: number }
 *   | { name: "error", code: string, message: string, retryable: boolean, retry_after_s: number }
 *   | { name: "go_away", seconds: number, reason: string }
 *   | { name: "resumable", resumable: boolean }
 *   | { name: "bye" }
 *   | { name: "unknown", called: string, fields: Value[] }
 * )} ServerMessage
 */

/** @typedef {Extract<ServerMessage, { name: "error" }>} ErrorMessage */

/**
 * How a conversation ended. `code` is the server's error, or `unreachable`, `broken_off`, `protocol`, `gave_up`,
 * `hello_failed`; `closed` or `done` if nothing went wrong.
 * @typedef {{ code: string, message: string, closeCode: number }} Ending
 */

export const SUBPROTOCOL = "voxlane.v1";

/** Largest frame that a server accepts, unless it says otherwise. */
export const FRAME_BYTES = 64 * 1024;

/** Longest typed turn and longest tool output, in characters. */
export const TEXT_CHARACTERS = 16000;
export const OUTPUT_CHARACTERS = 32000;

/** A frame that does not belong to the dialect. */
export class ProtocolError extends Error {
  name = "ProtocolError";
}

const STATES = new Set(["listening", "hearing", "thinking", "speaking", "held"]);

/** @type {{ [kind: string]: (value: Value) => boolean }} */
const KINDS = {
  text: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  count: (value) => typeof value === "number" && Number.isInteger(value) && value >= 0,
  flag: (value) => typeof value === "boolean",
  bytes: (value) => value instanceof Uint8Array,
  map: isMap,
  state: (value) => typeof value === "string" && STATES.has(value),
  words: (value) => Array.isArray(value) && value.every(isWord),
};

/**
 * The fields of the server's messages after the sequence number, and their types.
 * @type {{ [name: string]: [field: string, kind: string][] }}
 */
const FIELDS = {
  state: [["state", "state"]],
  speech_started: [["turn", "count"], ["at_s", "number"]],
  speech_stopped: [["turn", "count"], ["at_s", "number"]],
  user_words: [["turn", "count"], ["settled", "text"], ["tail", "text"]],
  user_turn: [["turn", "count"], ["text", "text"]],
  reply: [["epoch", "count"], ["turn", "count"]],
  reply_text: [["epoch", "count"], ["text", "text"]],
  audio: [["epoch", "count"], ["offset", "count"], ["data", "bytes"], ["words", "words"]],
  audio_done: [["epoch", "count"], ["samples", "count"]],
  duck: [["epoch", "count"], ["gain", "number"]],
  hold: [["epoch", "count"]],
  release: [["epoch", "count"]],
  interrupted: [["epoch", "count"], ["heard", "text"], ["samples", "count"]],
  reply_done: [["epoch", "count"], ["text", "text"]],
  turn_done: [["turn", "count"], ["how", "text"]],
  tool_call: [["epoch", "count"], ["call_id", "text"], ["tool", "text"], ["arguments", "text"]],
  latency: [
    ["turn", "count"], ["turn_end_ms", "number"], ["words_ms", "number"], ["first_token_ms", "number"],
    ["first_sample_ms", "number"], ["first_frame_ms", "number"],
  ],
  barge_in: [
    ["epoch", "count"], ["hold_ms", "number"], ["verdict_ms", "number"], ["committed", "flag"],
    ["ducked_ms", "number"], ["muted_ms", "number"],
  ],
  hard_to_hear: [],
  configured: [["config", "map"]],
  pong: [["mark", "count"], ["audio_s", "number"]],
  error: [["code", "text"], ["message", "text"], ["retryable", "flag"], ["retry_after_s", "number"]],
  go_away: [["seconds", "number"], ["reason", "text"]],
  resumable: [["resumable", "flag"]],
  bye: [],
};

/** @type {{ [key in keyof Ready]: (value: Value) => boolean }} */
const READY = {
  session: KINDS.text,
  token: KINDS.text,
  resumed: KINDS.flag,
  state: KINDS.state,
  input: isFormat,
  output: isFormat,
  config: KINDS.map,
  capabilities: KINDS.map,
  limits: (value) => isMap(value) && KINDS.number(value.resume_s) && KINDS.count(value.frame_bytes),
  history: (value) => Array.isArray(value) && value.every(isHistoryEntry),
  played: (value) => value === null || (Array.isArray(value) && value.length === 2 && value.every(KINDS.count)),
  at: KINDS.text,
  recorded: (value) => Array.isArray(value) && value.every(KINDS.text),
};

/**
 * Return one of the server's messages; throw ProtocolError or MsgpackError if it is none.
 * @param {Uint8Array} bytes
 * @returns {ServerMessage}
 */
export function parseMessage(bytes) {
  const parts = decode(bytes);
  if (!Array.isArray(parts) || parts.length < 2) throw new ProtocolError("a message is an array");
  const [name, seq, ...values] = parts;
  if (typeof name !== "string") throw new ProtocolError("a message begins with its name");
  if (typeof seq !== "number" || !KINDS.count(seq)) throw new ProtocolError(`${name}: its number`);
  if (name === "ready") return { name, seq, ready: parseReady(values[0]) };
  if (!Object.hasOwn(FIELDS, name)) return { name: "unknown", seq, called: name, fields: values };
  /** @type {Dictionary} */
  const message = { name, seq };
  FIELDS[name].forEach(([field, kind], place) => {
    if (place >= values.length || !KINDS[kind](values[place])) throw new ProtocolError(`${name}: ${field}`);
    message[field] = values[place];
  });
  return /** @type {ServerMessage} */ (/** @type {unknown} */ (message));
}

/** @param {Value | undefined} value @returns {Ready} */
function parseReady(value) {
  if (value === undefined || !isMap(value)) throw new ProtocolError("ready: not a map");
  /** @type {Dictionary} */
  const ready = { recorded: [], at: "", ...value }; // older servers record nothing and have no name
  for (const [key, fits] of Object.entries(READY)) {
    if (!Object.hasOwn(ready, key) || !fits(ready[key])) throw new ProtocolError(`ready: ${key}`);
  }
  return /** @type {Ready} */ (/** @type {unknown} */ (ready));
}

/** @param {Value} value @returns {value is Dictionary} */
function isMap(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

/** @param {Value} value */
function isWord(value) {
  return Array.isArray(value) && value.length >= 4 && value.every((item) => KINDS.count(item));
}

/** @param {Value} value */
function isFormat(value) {
  return isMap(value) && KINDS.text(value.codec) && KINDS.count(value.rate);
}

/** @param {Value} value */
function isHistoryEntry(value) {
  return isMap(value) && KINDS.text(value.role) && KINDS.text(value.content);
}

/**
 * @typedef {object} Hello
 * @property {Format | Format[]} [input] several: the best first
 * @property {Format | Format[]} [output]
 * @property {object} [config]
 * @property {string} [key]
 * @property {string} [resume]
 * @property {number} [last_seq]
 * @property {[epoch: number, samples: number]} [played]
 */

/** The client's messages, each as a frame. */
export const say = {
  /** @param {Hello} hello */
  hello: (hello) => encode(["hello", hello]),
  /** @param {Uint8Array} data */
  audio: (data) => encode(["audio", data]),
  /** @param {string} text */
  text: (text) => encode(["text", limited(text, TEXT_CHARACTERS)]),
  start: () => encode(["start"]),
  end: () => encode(["end"]),
  /** @param {number} epoch @param {number} samples @param {number} queued */
  played: (epoch, samples, queued) => encode(["played", epoch, samples, queued]),
  stop: () => encode(["stop"]),
  respond: () => encode(["respond"]),
  /** @param {object} config */
  config: (config) => encode(["config", config]),
  /** @param {string} callId @param {string} output */
  toolResult: (callId, output) => encode(["tool_result", callId, limited(output, OUTPUT_CHARACTERS)]),
  /** @param {number} mark */
  ping: (mark) => encode(["ping", mark]),
  bye: () => encode(["bye"]),
};

/** @param {string} text @param {number} most */
function limited(text, most) {
  // The server counts code points, of which there are never more than UTF-16 units.
  if (text.length > most && Array.from(text).length > most) throw new RangeError(`at most ${most} characters`);
  return text;
}

/**
 * What a close means to a client:
 * `done`: nothing is left to do; `resume`: the conversation may still be there; `anew`: it is over, and another may be
 * begun with the same settings; `failed`: it is over, and another attempt would fail too.
 * @typedef {"done" | "resume" | "anew" | "failed"} Verdict
 */

/**
 * Return what a close means.
 * @param {number} code
 * @param {{ afterError: boolean, resuming: boolean, handedOver?: boolean }} circumstances whether an `error` was the
 *   last message, whether the connection was to resume a conversation and had not yet done so, and whether `go_away` was
 *   the last message
 * @returns {Verdict}
 */
export function judgeClose(code, { afterError, resuming, handedOver = false }) {
  switch (code) {
    case 1000:
      return "done";
    case 1001: // the server, or a proxy before it, goes away
    case 1005: // no code was given
    case 1006: // the connection broke, or was never there
    case 1014: // a proxy has lost the server
    case 1015: // TLS failed
      return "resume";
    case 1011:
      return afterError ? "anew" : "resume";
    case 1012: // the server restarts; after `go_away` the next one has the conversation
      return handedOver ? "resume" : "anew";
    case 1013: // a full server may have room for a conversation that it keeps
      return resuming ? "resume" : "anew";
    case 4401: // the token or the key is wrong: the next hello will show which
      return resuming ? "anew" : "failed";
    default: // 1007, 1009, 4400, 4408, 4409, 4429, 4440, and codes of newer servers
      return "failed";
  }
}

/** @type {{ [code: number]: [code: string, message: string] }} */
const CLOSES = {
  1006: ["unreachable", "The server cannot be reached, or does not let this page connect."],
  4401: ["invalid_api_key", "The server's key is needed, and this is not it."],
  4408: ["timed_out", "Nothing was heard of this page for too long."],
  4409: ["resumed_elsewhere", "The conversation goes on on another connection."],
  4429: ["too_fast", "More was sent than the server allows."],
  4440: ["session_limit", "The conversation has reached its time limit."],
};

/**
 * Return the ending that a close means; an error before it names the cause.
 * @param {number} closeCode
 * @param {ErrorMessage | null} error
 * @returns {Ending}
 */
export function describeClose(closeCode, error) {
  if (error !== null) return { code: error.code, message: error.message, closeCode };
  const [code, message] = CLOSES[closeCode] ?? ["broken_off", `The connection was closed with ${closeCode}.`];
  return { code, message, closeCode };
}
