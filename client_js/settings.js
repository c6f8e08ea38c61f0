/** A conversation's settings in the client: merging, what the server has accepted, and what survives a reload. */

import { toolConfig } from "./tools.js";

/** @typedef {{ [key: string]: any }} Config */
/** @typedef {{ token: string, lastSeq: number, at?: string }} Past */
/** @typedef {Pick<import("./audio.js").BrowserAudio, keyof import("./audio.js").BrowserAudio>} AudioLike */

/**
 * @typedef {object} VoiceOptions
 * @property {string | URL} url of the server's /v1/voice; ws: or wss:
 * @property {string | (() => string)} [key] the server's key, or a function for it; never put it into a public page
 * @property {Config} [config] any part of the configuration that docs/protocol.md describes
 * @property {import("./tools.js").Tools} [tools] functions that the assistant may call
 * @property {Pick<Storage, "getItem" | "setItem" | "removeItem">} [storage] sessionStorage: a reload continues
 * @property {import("./wire.js").CodecChoice} [codec] `auto` by default; `ready` tells the result
 * @property {string | URL} [worklets] the folder of this library's files, with a slash at its end: for bundlers,
 *   which do not see the worklets' imports
 * @property {boolean} [ducking] false: the assistant gets quieter only when the server hears the person
 * @property {import("./connection.js").Environment} [environment] sockets and time, for tests
 * @property {(handlers: import("./audio.js").AudioHandlers, wireRate: number) => AudioLike} [audio] sound, for tests
 */

const STORED = "voxlane.resume";

/**
 * Return a configuration with another laid over it, as the server merges: by key, nested maps too.
 * @param {Config} below
 * @param {Config} above
 * @returns {Config}
 */
export function merge(below, above) {
  const merged = { ...below };
  for (const [key, value] of Object.entries(above)) {
    if (value === undefined || key === "__proto__") continue;
    merged[key] = isPlain(value) && isPlain(merged[key]) ? merge(merged[key], value) : value;
  }
  return merged;
}

/** @param {unknown} value */
function isPlain(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A page's wishes for its conversations: what a server has accepted, and what it was asked for since. */
export class Settings {
  /** @type {Config} Asked for and not yet answered: if the server closes because of it, it is not asked for again. */
  asked = {};
  #taken;
  #told = this.asked; // what was asked for at the last hello
  #unanswered = 0;

  /** @param {Pick<VoiceOptions, "config" | "tools">} options the settings that every conversation begins with */
  constructor({ config = {}, tools }) {
    this.#taken = tools ? merge(config, { tools: toolConfig(tools) }) : config;
  }

  /** Return all settings, for a hello. */
  greet() {
    this.#told = this.asked;
    return merge(this.#taken, this.asked);
  }

  /** @param {Config} config */
  ask(config) {
    this.asked = merge(this.asked, config);
    this.#unanswered += 1;
  }

  /**
   * Note that a conversation begins or goes on; return what to ask for now, because it was not in the hello or
   * may have been lost with the connection.
   * @param {boolean} resumed
   * @returns {Config | null}
   */
  begin(resumed) {
    if (!resumed && this.#told === this.asked) this.#take();
    const left = Object.keys(this.asked).length > 0;
    this.#unanswered = left ? 1 : 0;
    return left ? this.asked : null;
  }

  /** Note that the server has answered one request. */
  answered() {
    if (this.#unanswered === 0) return; // the answer to the page before this one
    this.#unanswered -= 1;
    if (this.#unanswered === 0) this.#take();
  }

  /** Note that the server has closed because of something that it was asked for. */
  refused() {
    this.asked = {};
  }

  #take() {
    this.#taken = merge(this.#taken, this.asked);
    this.asked = {};
  }
}

/** Return the key, if there is one. @param {Pick<VoiceOptions, "key">} options */
export function keyOf({ key }) {
  return (typeof key === "function" ? key() : key) || undefined;
}

/** Remembers the position in a conversation, for the next page after a reload. */
export class Memory {
  #storage;
  #url;

  /** @param {Pick<Storage, "getItem" | "setItem" | "removeItem"> | undefined} storage @param {string} url */
  constructor(storage, url) {
    this.#storage = storage;
    this.#url = url;
  }

  /** @returns {Past | undefined} */
  read() {
    const stored = this.#storage?.getItem(STORED);
    if (!stored) return undefined;
    try {
      const { url, token, lastSeq, at } = JSON.parse(stored);
      const fits = url === this.#url && typeof token === "string" && token !== "" && Number.isSafeInteger(lastSeq);
      if (!fits) return undefined;
      return typeof at === "string" && at !== "" ? { token, lastSeq, at } : { token, lastSeq };
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      return undefined; // not written by us
    }
  }

  /** @param {Past} past */
  write({ token, lastSeq, at }) {
    try {
      this.#storage?.setItem(STORED, JSON.stringify({ url: this.#url, token, lastSeq, at }));
    } catch (error) {
      if (!(error instanceof DOMException)) throw error; // it is full: the next page begins a new conversation
    }
  }

  forget() {
    this.#storage?.removeItem(STORED);
  }
}
