/** The buttons and keys of a conversation: mute, push-to-talk, interrupt, end, and writing. */

import { part } from "./dom.js";
import { focusOf, meaningOf } from "./keys.js";

/** @typedef {import("../voice-client.js").VoiceClient} VoiceClient */
/** @typedef {import("./session.js").Session} Session */

/** The controls in the page. */
export class Controls {
  #mute = part("mute", HTMLButtonElement);
  #ptt = part("ptt", HTMLButtonElement);
  #hold = part("hold", HTMLButtonElement);
  #interrupt = part("interrupt", HTMLButtonElement);
  #text = part("text", HTMLInputElement);
  #client;
  #session;
  #announce;

  /**
   * @param {VoiceClient} client @param {Session} session
   * @param {(words: string) => void} announce called with what a key did to a button without the focus
   */
  constructor(client, session, announce) {
    this.#client = client;
    this.#session = session;
    this.#announce = announce;
    part("start", HTMLButtonElement).addEventListener("click", () => void session.begin());
    part("end", HTMLButtonElement).addEventListener("click", () => void session.end());
    this.#interrupt.addEventListener("click", () => {
      if (this.#interrupt.getAttribute("aria-disabled") !== "true") void client.interrupt();
    });
    this.#mute.addEventListener("click", () => this.#toggleMute());
    this.#ptt.addEventListener("click", () => session.attempt(() => client.setPushToTalk(!client.pushToTalk)));
    part("composer", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#write();
    });
    this.#listenToHold();
    this.#listenToKeys();
    part("controls", HTMLElement).addEventListener("click", (event) => {
      // A clicked button keeps the focus, and Space would press it again: in this mode Space means the talk button.
      if (event.detail > 0 && client.pushToTalk) this.#hold.focus();
    });
  }

  /** Show the microphone's state. @param {import("../events.js").VoiceEvents["microphone"]} microphone */
  show({ muted, listening, pushToTalk, pressed }) {
    this.#mute.classList.toggle("off", muted || (!listening && !this.#session.starting));
    part("mute-words", HTMLElement).textContent = !listening ? "Use mic" : muted ? "Unmute" : "Mute";
    this.#ptt.setAttribute("aria-pressed", String(pushToTalk));
    const focused = document.activeElement === this.#hold;
    this.#hold.hidden = !(pushToTalk && listening);
    if (focused && this.#hold.hidden) this.#mute.focus(); // the microphone is gone: this button brings it back
    this.#hold.classList.toggle("pressed", pressed);
    this.#hold.setAttribute("aria-pressed", String(pressed));
    this.#hold.textContent = pressed ? "Listening: let go to send" : "Hold to talk";
    part("space-key", HTMLElement).hidden = this.#hold.hidden;
  }

  /** Show whether there is something to interrupt; the button stays focusable. @param {boolean} can */
  allowInterrupt(can) {
    this.#interrupt.setAttribute("aria-disabled", String(!can));
    this.#interrupt.title = can ? "Interrupt (Esc)" : "Nothing is being said";
  }

  /** Keep the focus on a visible element. @param {Element | null} focused @param {boolean} talking */
  refocus(focused, talking) {
    const start = part("start", HTMLButtonElement);
    const gone = focused === this.#hold || part("controls", HTMLElement).contains(focused);
    if (talking && focused === start) (this.#hold.hidden ? this.#mute : this.#hold).focus();
    if (!talking && gone) start.focus();
  }

  #toggleMute() {
    if (this.#session.listening) this.#client.mute(!this.#client.muted);
    else void this.#session.openMicrophone();
  }

  #muteByKey() {
    const { listening } = this.#session;
    this.#toggleMute();
    if (listening && document.activeElement !== this.#mute) this.#announce(this.#client.muted ? "Muted" : "Not muted");
  }

  async #write() {
    const text = this.#text.value.trim();
    if (!text) return;
    this.#text.value = "";
    if (await this.#session.write(text)) return;
    this.#text.value = [this.#text.value, text].filter(Boolean).join(" "); // so that it need not be typed again
  }

  #press() {
    if (this.#session.listening) this.#session.attempt(() => this.#client.press());
    else if (!this.#session.asking) void this.#session.openMicrophone(); // talking needs a microphone
  }

  #release() {
    this.#session.attempt(() => this.#client.release());
  }

  #listenToHold() {
    const hold = this.#hold;
    hold.addEventListener("pointerdown", (event) => {
      hold.setPointerCapture(event.pointerId);
      this.#press();
    });
    for (const name of ["pointerup", "pointercancel", "blur"]) hold.addEventListener(name, () => this.#release());
    hold.addEventListener("contextmenu", (event) => event.preventDefault()); // a long touch opens no menu here
    hold.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // otherwise it is a click too
      if (!event.repeat) this.#press();
    });
    hold.addEventListener("keyup", (event) => event.key === "Enter" && this.#release());
    hold.addEventListener("click", (event) => {
      if (event.detail > 0) return; // a finger or a mouse
      if (this.#client.pressed) this.#release(); // screen readers and voice control can click but not hold
      else this.#press();
    });
  }

  #listenToKeys() {
    document.addEventListener("keydown", (event) => {
      const modified = event.ctrlKey || event.altKey || event.metaKey;
      const composing = event.isComposing || event.keyCode === 229; // Safari's code for the key that ends composing
      const focus = focusOf(document.activeElement);
      const { key, repeat } = event;
      const meaning = meaningOf({ key, repeat, modified, composing, focus, pushToTalk: this.#client.pushToTalk });
      if (meaning === "begin" && !this.#session.busy) void this.#session.begin();
      if (meaning === null || meaning === "begin" || !this.#session.busy) return;
      if (meaning !== "interrupt") event.preventDefault(); // Space also scrolls and presses buttons
      if (meaning === "interrupt") void this.#client.interrupt();
      if (meaning === "mute") this.#muteByKey();
      if (meaning === "talk") this.#press();
    });
    document.addEventListener("keyup", (event) => {
      if (event.key !== " " || !this.#client.pressed) return;
      if (focusOf(document.activeElement) === "free") event.preventDefault();
      this.#release(); // wherever the focus is by now
    });
    window.addEventListener("blur", () => this.#release()); // the key will be released where we get no event
  }
}
