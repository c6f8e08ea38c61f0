/**
 * Settings that outlive the page: kept in this browser, for this server, without the key unless the person asks. Pure.
 */

/** @typedef {import("./storage.js").StorageLike} StorageLike */

/**
 * @typedef {object} Kept
 * @property {{ [key: string]: any }} config what the person has changed of the assistant's configuration
 * @property {string} microphone its device id, "" for the browser's choice
 * @property {string} speaker
 * @property {boolean} processing whether echo and noise are cancelled
 * @property {boolean} tools whether the assistant may use this page's tools
 * @property {boolean} recording whether the sound is recorded in this page
 * @property {string} key the server's, "" unless it is to be remembered
 */

const NAME = "voxlane.settings";

/** @type {Readonly<Kept>} */
const USUAL = { config: {}, microphone: "", speaker: "", processing: true, tools: false, recording: false, key: "" };

/** The settings in a browser's storage. */
export class Preferences {
  #storage;

  /** @param {StorageLike} storage */
  constructor(storage) {
    this.#storage = storage;
  }

  /** Return the settings; those that are missing, or not of their kind, are the usual ones. @returns {Kept} */
  read() {
    const stored = parsed(this.#storage.getItem(NAME));
    /** @type {{ [name: string]: any }} */
    const kept = { ...USUAL };
    for (const [name, usual] of Object.entries(USUAL)) {
      const value = stored[name];
      if (typeof value === typeof usual && value !== null && !Array.isArray(value)) kept[name] = value;
    }
    return /** @type {Kept} */ (kept);
  }

  /** Change some of them. @param {Partial<Kept>} changes */
  write(changes) {
    try {
      this.#storage.setItem(NAME, JSON.stringify({ ...this.read(), ...changes }));
    } catch (error) {
      if (!(error instanceof DOMException)) throw error; // the storage is full: they last as long as the page
    }
  }

  /** Forget all of them. */
  forget() {
    this.#storage.removeItem(NAME);
  }
}

/** @param {string | null} text @returns {{ [name: string]: any }} */
function parsed(text) {
  try {
    return Object(JSON.parse(text ?? "{}"));
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return {}; // not written by us
  }
}
