/**
 * Beginning and ending conversations, and what becomes of every trouble on the way.
 *
 * It moves a VoiceClient and fills the notices. It knows no document: what it must know of the page comes as functions.
 */

import { VoiceError } from "../errors.js";
import { explain, waiting } from "./notices.js";

/** @typedef {import("../voice-client.js").VoiceClient} VoiceClient */
/** @typedef {import("./notices.js").Notices} Notices */

/**
 * @typedef {object} Surroundings
 * @property {() => import("../audio.js").MicrophoneOptions} microphone which one, and how
 * @property {() => string} speaker the loudspeaker that was chosen, "" if none was
 * @property {() => Promise<string>} probe why the server cannot be reached, as a code
 * @property {() => void} changed something that is shown may be different
 * @property {(words: string) => void} divide another conversation begins under the old one's captions
 * @property {import("../environment.js").Environment["setTimer"]} setTimer
 */

/** How long good news and passing troubles are shown. */
const NEWS_MS = 6000;
const TROUBLE_MS = 12_000;

/** Time for the browser to let sound begin before the person is asked for a click. */
const SILENCE_MS = 700;

/** Faults that say what a notice about the connection will say as well. */
const ENDINGS = new Set([
  "invalid_api_key", "invalid_resume_token", "session_limit", "timed_out", "slow_reader", "too_fast",
  "resumed_elsewhere",
]);

/** One page's conversations, one after the other. */
export class Session {
  /** Whether there was a conversation. */
  begun = false;
  /** Whether somebody wants one, and it is not there yet. */
  starting = false;
  /** Whether the browser is asking for the microphone. */
  asking = false;
  /** Whether the loudspeaker is open; the browser may still keep it silent. */
  sounds = false;

  #client;
  #notices;
  #around;
  #connected = Promise.resolve(false); // whether the last one that was begun came about
  #returning = false; // the page was loaded anew in the middle of a conversation
  #beginnings = 0; // endings too: what was begun before the last of them is nobody's wish any more
  #askings = 0; // for the microphone, likewise
  #exchanging = false; // the microphone was open, and is opened otherwise
  #reason = ""; // the last fault's code: why a connection is waited for

  /** @param {VoiceClient} client @param {Notices} notices @param {Surroundings} around */
  constructor(client, notices, around) {
    this.#client = client;
    this.#notices = notices;
    this.#around = around;
    client.on("ready", ({ ready, how }) => this.#ready(ready.resumed, how));
    client.on("status", (change) => this.#status(change));
    client.on("fault", (fault) => this.#fault(fault));
    client.on("over", (ending) => void this.#over(ending.code, ending.message));
    client.on("sound", ({ silenced }) => silenced && this.#watchSilence());
    client.on("figures", () => this.#notices.clear("sound", "silenced"));
    client.on("message", (message) => {
      if (message.name === "go_away") this.#notices.tell("server", explain(farewell(message.reason)));
      if (message.name === "reply") this.#notices.clear("server");
    });
  }

  /** Whether there is a conversation, or one is being begun. */
  get busy() {
    return this.starting || !(this.#client.status === "idle" || this.#client.status === "closed");
  }

  /** Whether the microphone is open, or is just being exchanged for another. */
  get listening() {
    return this.#client.listening || this.#exchanging;
  }

  /**
   * Begin a conversation: call it from a click or a key, or the browser keeps the loudspeaker silent.
   * @param {{ microphone?: boolean, returning?: boolean }} [how] `returning`: take up the one that a reload has cut
   * @returns {Promise<boolean>} whether there is one
   */
  async begin({ microphone = true, returning = false } = {}) {
    if (this.busy) return false;
    this.starting = true;
    const beginning = ++this.#beginnings;
    this.#returning = returning;
    this.#reason = "";
    this.#notices.clearAll();
    this.#around.changed();
    this.#connected = this.#connect(beginning);
    const connected = await this.#connected;
    if (beginning !== this.#beginnings) return false;
    if (connected && microphone && this.sounds) await this.openMicrophone();
    if (beginning !== this.#beginnings) return false;
    this.starting = false;
    this.#around.changed();
    return connected;
  }

  /** @param {number} beginning */
  async #connect(beginning) {
    await this.openSound(); // first: a conversation that is taken up begins to sound at once
    if (beginning !== this.#beginnings) return false;
    try {
      await this.#client.connect();
      return beginning === this.#beginnings;
    } catch (error) {
      if (error instanceof VoiceError) return false; // "over" has told it
      throw error;
    }
  }

  /** End the conversation and let the microphone go. */
  async end() {
    this.#stop();
    this.#notices.clearAll();
    this.#around.changed();
    await this.#client.close();
    this.#around.changed();
  }

  /** Want no more what was wanted: whatever is still waited for changes nothing when it comes. */
  #stop() {
    this.#beginnings += 1;
    this.#askings += 1;
    this.starting = this.asking = this.#exchanging = false;
  }

  /** Open the loudspeaker, or say why not; call it from a click or a key. */
  async openSound() {
    const beginning = this.#beginnings;
    try {
      await this.#client.listen();
      if (beginning !== this.#beginnings) return false;
      this.sounds = true;
    } catch (error) {
      if (beginning !== this.#beginnings) return false;
      this.sounds = false;
      this.#notices.tell("sound", explain(error instanceof VoiceError ? error.code : "sound_failed"));
      return false;
    }
    this.#notices.clear("sound");
    const speaker = this.#around.speaker();
    if (speaker) await this.useSpeaker(speaker);
    this.#watchSilence();
    return true;
  }

  /** Ask for a click if the browser goes on keeping the page silent. */
  #watchSilence() {
    this.#around.setTimer(() => {
      if (this.#client.silenced && this.busy) this.#notices.tell("sound", explain("silenced"));
    }, SILENCE_MS);
  }

  /** Open the microphone, or another one, or say why not. */
  async openMicrophone() {
    const asking = ++this.#askings;
    this.#exchanging = this.listening;
    this.asking = !this.#exchanging;
    this.#around.changed();
    try {
      await this.#client.talk(this.#around.microphone());
      this.#notices.clear("microphone");
      return true;
    } catch (error) {
      const code = error instanceof VoiceError ? error.code : "microphone_busy";
      if (code !== "microphone_closed" && asking === this.#askings) this.#notices.tell("microphone", explain(code));
      return false;
    } finally {
      if (asking === this.#askings) this.asking = this.#exchanging = false;
      this.#around.changed();
    }
  }

  /** Play through another device, as far as the browser can. @param {string} deviceId */
  async useSpeaker(deviceId) {
    try {
      await this.#client.useSpeaker(deviceId);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      this.#notices.tell("server", explain("sound_failed"), TROUBLE_MS); // it is gone, or not allowed
    }
  }

  /** Say something in writing; it begins a conversation where there is none. @param {string} text */
  async write(text) {
    if (!this.busy) void this.begin({ microphone: false });
    if (!(await this.#connected)) return false;
    return this.attempt(() => this.#client.say(text));
  }

  /** Do what the connection may refuse; say so if it does, and return whether it did not. @param {() => void} act */
  attempt(act) {
    try {
      act();
      return true;
    } catch (error) {
      if (!(error instanceof VoiceError)) throw error;
      this.#notices.tell("server", explain(error.code, error.message), TROUBLE_MS);
      return false;
    }
  }

  // ---- what the client tells

  /** @param {boolean} resumed @param {"first" | "resumed" | "anew"} how */
  #ready(resumed, how) {
    const forgotten = how === "anew" || (this.#returning && !resumed);
    const loss = this.#reason === "codec_failed" ? "codec_failed" : "gone";
    if (forgotten) this.#notices.tell("connection", explain(loss), TROUBLE_MS);
    else if (resumed) this.#notices.tell("connection", explain("resumed"), NEWS_MS);
    else this.#notices.clear("connection");
    if (how === "anew") this.#around.divide("The assistant no longer remembers what is above");
    else if (how === "first" && this.begun) this.#around.divide("A new conversation");
    this.begun = true;
    this.#returning = false;
    this.#reason = "";
    this.#notices.clear("server");
  }

  /** @param {import("../connection.js").StatusChange} change */
  #status({ status, resuming, delayMs }) {
    if (status === "waiting") {
      const broken = { ...explain(resuming ? "reconnecting" : "server_away"), code: "reconnecting" };
      const notice = !this.begun && this.#reason ? explain(this.#reason) : broken;
      this.#notices.tell("connection", waiting(notice, delayMs));
    }
    this.#around.changed();
  }

  /** @param {VoiceError} fault */
  #fault(fault) {
    if (fault.code === "unknown_call") return; // a tool's result that was said again: nobody's trouble
    this.#reason = fault.code;
    if (fault.code === "microphone_lost") void this.#replaceMicrophone();
    else if (!ENDINGS.has(fault.code)) {
      this.#notices.tell("server", explain(fault.code, fault.message), TROUBLE_MS);
    }
  }

  /** Go on with whatever microphone there still is. */
  async #replaceMicrophone() {
    this.#notices.tell("microphone", explain("microphone_lost"));
    try {
      await this.#client.talk({ ...this.#around.microphone(), deviceId: undefined });
      this.#notices.tell("microphone", explain("microphone_changed"), TROUBLE_MS);
    } catch (error) {
      if (!(error instanceof VoiceError)) throw error; // the notice stands, and has a button
    }
    this.#around.changed();
  }

  /** @param {string} code @param {string} message */
  async #over(code, message) {
    this.#stop();
    void this.#client.close(); // the microphone's light goes out with the conversation
    for (const place of /** @type {const} */ (["sound", "server", "microphone"])) this.#notices.clear(place);
    if (code === "closed" || code === "done") this.#notices.clear("connection");
    else this.#notices.tell("connection", explain(code, message));
    this.#around.changed();
    if (code !== "unreachable") return;
    const beginnings = this.#beginnings;
    const reason = await this.#around.probe();
    if (beginnings !== this.#beginnings) return; // somebody has tried again meanwhile
    this.#notices.tell("connection", { ...explain(reason), action: "retry", label: "Try again" });
  }
}

/** Return what a `go_away` means to a person. @param {string} reason */
function farewell(reason) {
  return reason === "session_limit" ? "session_ends" : reason;
}

/**
 * Return why a server does not let us in, as a code: browsers tell pages nothing of a refused WebSocket.
 * @param {() => Promise<{ json(): Promise<any> }>} ask its health
 */
export async function probe(ask) {
  try {
    const { status } = await (await ask()).json();
    if (status === "draining") return "draining";
    return status === "ready" ? "turned_away" : "engine_not_ready";
  } catch (error) {
    // A TypeError is a network that failed, a SyntaxError an answer that is not the server's.
    if (error instanceof TypeError || error instanceof SyntaxError) return "unreachable";
    throw error;
  }
}
