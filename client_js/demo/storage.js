/**
 * Storage that outlives a reload of this tab, and the microphone's state in it.
 *
 * The library keeps its own entries in the same storage.
 */

/** @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} StorageLike */
/** @typedef {{ listening: boolean, muted: boolean }} Stance how a person left the microphone */

const STANCE = "voxlane.microphone";
const PROBE = "voxlane.probe";

/** A storage for as long as the page lasts. @implements {StorageLike} */
class PageStorage {
  /** @type {Map<string, string>} */
  #values = new Map();

  /** @param {string} name */
  getItem(name) {
    return this.#values.get(name) ?? null;
  }

  /** @param {string} name @param {string} value */
  setItem(name, value) {
    this.#values.set(name, value);
  }

  /** @param {string} name */
  removeItem(name) {
    this.#values.delete(name);
  }
}

/**
 * Return a browser's storage, or one that ends with the page: where site data are blocked, even its name throws.
 * @param {() => StorageLike | null} find
 * @returns {StorageLike}
 */
export function openStorage(find) {
  try {
    const storage = find();
    storage?.setItem(PROBE, "");
    storage?.removeItem(PROBE);
    return storage ?? new PageStorage();
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return new PageStorage();
  }
}

/** Remembers the microphone's state: a reload must not open what the person had closed. */
export class StanceMemory {
  #storage;
  #written = "";

  /** @param {StorageLike} storage */
  constructor(storage) {
    this.#storage = storage;
  }

  /** Return the remembered state; closed and unmuted if nothing is known. @returns {Stance} */
  read() {
    const [listening, muted] = (this.#storage.getItem(STANCE) ?? "").split(" ");
    return { listening: listening === "open", muted: muted === "muted" };
  }

  /** @param {Stance} stance */
  write({ listening, muted }) {
    const stance = `${listening ? "open" : "closed"} ${muted ? "muted" : "heard"}`;
    if (stance === this.#written) return;
    this.#written = stance;
    this.#storage.setItem(STANCE, stance);
  }
}
