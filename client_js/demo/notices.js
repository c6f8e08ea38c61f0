/**
 * The notices for when something is wrong: one plain sentence each, and what to do. Pure.
 *
 * Several things may be wrong at once. Each has a place, and the page shows the one that matters most.
 */

/** @typedef {"retry" | "microphone" | "key" | "sound" | "none"} Action what the notice's button does */
/** @typedef {typeof TONES[number]} Tone */
/**
 * `aside` is shown beside the text but not read out, because it changes all the time.
 * @typedef {{ code: string, text: string, aside?: string, tone: Tone, action: Action, label: string }} Notice
 */

/** Places of notices, and their tones: the most important first. */
const PLACES = /** @type {const} */ (["connection", "sound", "server", "microphone", "page"]);
const TONES = /** @type {const} */ (["error", "warning", "calm"]);

/** @typedef {typeof PLACES[number]} Place */

/** @type {{ [code: string]: [text: string, tone: Tone, action?: Action, label?: string] }} */
const TEXTS = {
  // the browser
  insecure_origin: [
    "Browsers give the microphone only to https pages and to localhost. Start the server with --tls-cert and --tls-key " +
      "and open https://…, or run ssh -L 8000:localhost:8000 SERVER and open http://localhost:8000. Typing works here.",
    "error",
  ],
  no_worklet: [
    "This browser is too old for voice: use a current Chrome, Firefox, Edge or Safari. Typing works.", "error",
  ],
  sound_failed: [
    "The browser could not open its sound: close other programs that use it, then try again.",
    "error", "sound", "Try again",
  ],
  silenced: ["Your browser keeps this page silent until you click.", "warning", "sound", "Turn the sound on"],
  // the microphone
  microphone_refused: [
    "The microphone is not allowed: allow it beside the address of this page, then try again. Typing works meanwhile.",
    "warning", "microphone", "Try again",
  ],
  microphone_missing: [
    "No microphone was found: plug one in, then try again. Typing works meanwhile.",
    "warning", "microphone", "Try again",
  ],
  microphone_busy: [
    "The microphone is busy: close the program that uses it, then try again.", "warning", "microphone", "Try again",
  ],
  microphone_lost: [
    "The microphone was unplugged or taken away: plug it in again, or use another one.",
    "warning", "microphone", "Use another",
  ],
  microphone_changed: ["The microphone was unplugged, so another one is listening now.", "calm"],
  hard_to_hear: ["You are hard to hear: speak up, or come closer to the microphone.", "warning"],
  // the server
  invalid_api_key: [
    "This server asks for a key: enter it in the settings, then start again.", "error", "key", "Enter the key",
  ],
  wrong_key: [
    "The server does not know this key: check it in the settings, then start again.", "error", "key", "Change the key",
  ],
  not_allowed: ["This server does not allow what the page asked for.", "error", "retry", "Try again"],
  unreachable: [
    "The server cannot be reached: see that it runs and that you are online, then try again.",
    "error", "retry", "Try again",
  ],
  broken_off: ["The server broke the conversation off: start again.", "error", "retry", "Start again"],
  gave_up: ["The server did not come back: try again when it runs.", "error", "retry", "Try again"],
  turned_away: [
    "The server runs but did not let this page connect: it is full, or does not allow this address (voice.origins), " +
      "or a proxy blocks WebSockets.",
    "warning", "retry", "Try again",
  ],
  full: ["Every place on this server is taken: try again in a moment.", "warning", "retry", "Try again"],
  overloaded: ["The server is busy: wait a moment and say it again.", "warning"],
  unavailable: ["The server cannot answer right now: wait a moment.", "warning"],
  draining: ["The server is being shut down: a new conversation begins when it is back.", "warning"],
  engine_not_ready: ["The server is still loading its models: this takes a moment.", "calm"],
  engine_lost: ["The models had to be restarted: wait a moment, then say it again.", "warning"],
  engine_start_failed: ["The server's models could not be started: its log says why.", "error", "retry", "Try again"],
  model_failed: ["The model stumbled over that: say it again in other words.", "warning"],
  session_limit: [
    "This conversation reached the server's time limit: start another one.", "calm", "retry", "Start again",
  ],
  session_ends: ["This conversation reaches the server's time limit within a minute.", "calm"],
  timed_out: ["Nothing was heard from this page for too long: start again.", "warning", "retry", "Start again"],
  slow_reader: [
    "The line is too slow for sound: try another network, then start again.", "error", "retry", "Start again",
  ],
  too_fast: ["This page sent more than the server allows: start again.", "error", "retry", "Start again"],
  resumed_elsewhere: [
    "This conversation goes on in another tab: close that one, or start another here.",
    "calm", "retry", "Start another",
  ],
  protocol: ["The server speaks another version than this page: reload the page.", "error"],
  // the conversation
  reconnecting: ["The connection broke: it is being made again, and the conversation waits.", "warning"],
  server_away: ["The server went away: a new conversation begins as soon as it is back.", "warning"],
  resumed: ["Connected again: the conversation goes on.", "calm"],
  gone: [
    "The server has forgotten the conversation, so a new one was begun: " +
      "the assistant no longer remembers what is above.",
    "warning",
  ],
  codec_failed: ["This browser failed to compress its sound: a new conversation was begun without that.", "warning"],
  too_long: ["That is longer than the server takes: make it shorter.", "warning"],
  not_connected: ["There is no connection yet: press start first.", "warning"],
  timer_rang: ["The timer is over.", "calm"],
  tool_failed: ["A tool of this page failed: the conversation goes on.", "warning"],
};

/**
 * Return the notice for a code; for an unknown code, the server's message.
 * @param {string} code
 * @param {string} [message]
 * @returns {Notice}
 */
export function explain(code, message = "") {
  const known = Object.hasOwn(TEXTS, code) ? TEXTS[code] : undefined;
  const [text, tone, action = "none", label = ""] = known ?? [
    `${message || "Something went wrong."} Start again if it does not go on by itself.`,
    "error", "retry", "Start again",
  ];
  return { code, text, tone, action, label };
}

/** Return a notice with the time until the next attempt to connect. @param {Notice} notice @param {number} delayMs */
export function waiting(notice, delayMs) {
  const seconds = Math.round(delayMs / 1000);
  return seconds < 2 ? notice : { ...notice, aside: `Next attempt in ${seconds} s.` };
}

/** The current notices. */
export class Notices {
  /** @type {Map<Place, Notice>} */
  #notices = new Map();
  /** @type {Map<Place, any>} */
  #timers = new Map();
  #changed;
  #environment;

  /**
   * @param {(notice: Notice | null) => void} changed called with the notice to show
   * @param {Pick<import("../environment.js").Environment, "setTimer" | "clearTimer">} environment
   */
  constructor(changed, environment) {
    this.#changed = changed;
    this.#environment = environment;
  }

  /** The most important notice. */
  get current() {
    const place = this.#place;
    return (place && this.#notices.get(place)) ?? null;
  }

  get #place() {
    const places = PLACES.filter((place) => this.#notices.has(place));
    return TONES.flatMap((tone) => places.filter((place) => this.#notices.get(place)?.tone === tone))[0];
  }

  /**
   * Show a notice, for some time or until it is cleared.
   * @param {Place} place @param {Notice} notice @param {number} [lastsMs]
   */
  tell(place, notice, lastsMs = Infinity) {
    this.#stop(place);
    this.#notices.set(place, notice);
    if (lastsMs < Infinity) this.#timers.set(place, this.#environment.setTimer(() => this.clear(place), lastsMs));
    this.#changed(this.current);
  }

  /** Clear a place; with a code, only if it shows that code. @param {Place} place @param {string} [code] */
  clear(place, code) {
    const notice = this.#notices.get(place);
    if (notice === undefined || (code !== undefined && notice.code !== code)) return;
    this.#stop(place);
    this.#notices.delete(place);
    this.#changed(this.current);
  }

  /** Clear the notice that is shown: the person has read it. */
  dismiss() {
    const place = this.#place;
    if (place) this.clear(place);
  }

  /** Clear everything. */
  clearAll() {
    for (const place of PLACES) this.clear(place);
  }

  /** @param {Place} place */
  #stop(place) {
    if (this.#timers.has(place)) this.#environment.clearTimer(this.#timers.get(place));
    this.#timers.delete(place);
  }
}
