/**
 * Begin and end conversations, and turn every problem on the way into a notice.
 *
 * It drives a VoiceClient and fills the notices. It does not use the DOM: it gets functions for what it needs.
 */

import { VoiceError } from "../errors.js";
import { explain, waiting } from "./notices.js";

/** @typedef {import("../voice-client.js").VoiceClient} VoiceClient */
/** @typedef {import("./notices.js").Notices} Notices */

/**
 * @typedef {object} Surroundings
 * @property {() => import("../audio.js").MicrophoneOptions} microphone the options for opening it
 * @property {() => string} speaker the loudspeaker that was chosen, "" if none was
 * @property {() => Promise<void>} prepare ask the client for the settings that the server can follow
 * @property {() => Promise<string>} probe why the server cannot be reached, as a code
 * @property {() => boolean} keyed whether the person has entered a key
 * @property {() => void} changed called when something that is shown may have changed
 * @property {(words: string) => void} divide called when another conversation begins under the old one's captions
 * @property {import("../environment.js").Environment["setTimer"]} setTimer
 */

/** How long good news and passing problems are shown. */
const NEWS_MS = 6000;
const TROUBLE_MS = 12_000;

/** Time for the browser to start sound before the person is asked for a click. */
const SILENCE_MS = 700;

/** Faults that a notice about the connection will explain as well. */
const ENDINGS = new Set([
  "invalid_api_key", "invalid_resume_token", "session_limit", "timed_out", "slow_reader", "too_fast",
  "resumed_elsewhere",
]);

/** One page's conversations, one after the other. */
export class Session {
  /** Whether there was a conversation. */
  begun = false;
  /** Whether a conversation was asked for and is not there yet. */
  starting = false;
  /** Whether the browser is asking for the microphone. */
  asking = false;
  /** Whether the loudspeaker is open; the browser may still keep it silent. */
  sounds = false;

  #client;
  #notices;
  #around;
  #connected = Promise.resolve(false); // whether the last beginning succeeded
  #returning = false; // the page was reloaded in the middle of a conversation
  #beginnings = 0; // counts beginnings and endings: results of earlier ones are void
  #askings = 0; // the same for the microphone
  #exchanging = false; // an open microphone is being exchanged for another
  #reason = ""; // the last fault's code: the reason for waiting to reconnect

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
    client.on("microphone", ({ muted }) => muted && this.#notices.clear("microphone", "hard_to_hear"));
    client.on("figures", () => this.#notices.clear("sound", "silenced"));
    client.on("message", (message) => {
      const leaves = message.name === "go_away" && message.seconds > 0; // else another server goes on at once
      if (leaves) this.#notices.tell("server", explain(farewell(message.reason)));
      const faint = message.name === "hard_to_hear" && !client.muted;
      if (faint) this.#notices.tell("microphone", explain("hard_to_hear"), TROUBLE_MS);
      if (message.name === "reply") this.#notices.clear("server");
    });
  }

  /** Whether there is a conversation, or one is being begun. */
  get busy() {
    return this.starting || !(this.#client.status === "idle" || this.#client.status === "closed");
  }

  /** Whether the microphone is open, or is being exchanged for another. */
  get listening() {
    return this.#client.listening || this.#exchanging;
  }

  /**
   * Begin a conversation. Call it from a click or a key press: otherwise the browser keeps the loudspeaker silent.
   * @param {{ microphone?: boolean, returning?: boolean }} [how] `returning`: resume the one that a reload has cut
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
    await this.openSound(); // first: a resumed conversation may sound at once
    await this.#around.prepare();
    if (beginning !== this.#beginnings) return false;
    try {
      await this.#client.connect();
      return beginning === this.#beginnings;
    } catch (error) {
      if (error instanceof VoiceError) return false; // "over" has reported it
      throw error;
    }
  }

  /** End the conversation and close the microphone. */
  async end() {
    this.#stop();
    this.#notices.clearAll();
    this.#around.changed();
    await this.#client.close();
    this.#around.changed();
  }

  /** Void everything that was asked for: late results change nothing. */
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

  /** Ask for a click if the browser keeps the page silent. */
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
      this.#notices.tell("server", explain("sound_failed"), TROUBLE_MS); // the device is gone, or not allowed
    }
  }

  /** Send a typed turn; it begins a conversation if there is none. @param {string} text */
  async write(text) {
    if (!this.busy) void this.begin({ microphone: false });
    if (!(await this.#connected)) return false;
    return this.attempt(() => this.#client.say(text));
  }

  /** Do something that the connection may refuse; show a refusal; return whether it went. @param {() => void} act */
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

  // ---- the client's events

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
    if (fault.code === "unknown_call") return; // a tool's result that was sent again: harmless
    this.#reason = fault.code;
    if (fault.code === "microphone_lost") void this.#replaceMicrophone();
    else if (!ENDINGS.has(fault.code)) {
      this.#notices.tell("server", explain(fault.code, fault.message), TROUBLE_MS);
    }
  }

  /** Continue with any microphone that is left. */
  async #replaceMicrophone() {
    this.#notices.tell("microphone", explain("microphone_lost"));
    try {
      await this.#client.talk({ ...this.#around.microphone(), deviceId: undefined });
      this.#notices.tell("microphone", explain("microphone_changed"), TROUBLE_MS);
    } catch (error) {
      if (!(error instanceof VoiceError)) throw error; // the notice stays, and has a button
    }
    this.#around.changed();
  }

  /** Return the code of an ending's notice. @param {string} code */
  #causeOf(code) {
    return code === "invalid_api_key" && this.#around.keyed() ? "wrong_key" : code;
  }

  /** @param {string} code @param {string} message */
  async #over(code, message) {
    this.#stop();
    void this.#client.close(); // the microphone closes with the conversation
    for (const place of /** @type {const} */ (["sound", "server", "microphone"])) this.#notices.clear(place);
    if (code === "closed" || code === "done") this.#notices.clear("connection");
    else this.#notices.tell("connection", explain(this.#causeOf(code), message));
    this.#around.changed();
    if (code !== "unreachable") return;
    const beginnings = this.#beginnings;
    const reason = await this.#around.probe();
    if (beginnings !== this.#beginnings) return; // the person has tried again meanwhile
    this.#notices.tell("connection", { ...explain(reason), action: "retry", label: "Try again" });
  }
}

/** Return the notice for a `go_away`. @param {string} reason */
function farewell(reason) {
  return reason === "session_limit" ? "session_ends" : reason;
}

/**
 * Return the reason for a refusal, as a code: browsers tell pages nothing of a refused WebSocket.
 * @param {() => Promise<{ json(): Promise<any> }>} ask asks for the server's health
 */
export async function probe(ask) {
  try {
    const { status } = await (await ask()).json();
    if (status === "draining") return "draining";
    return status === "ready" ? "turned_away" : "engine_not_ready";
  } catch (error) {
    // A TypeError means that the network failed, a SyntaxError that the answer is not the server's.
    if (error instanceof TypeError || error instanceof SyntaxError) return "unreachable";
    throw error;
  }
}
