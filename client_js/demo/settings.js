/**
 * The settings of the assistant: from what the server has to the form, and from the form to what the server is told.
 *
 * `valuesOf`, `changesOf` and `voiceName` are pure; `SettingsForm` is the form in the page.
 */

import { make, part } from "./dom.js";

/** @typedef {{ prompt: string, voice: string, speed: number, eagerness: string }} Values */

/** The words behind the letters of Kokoro's voices: `af_heart` is an American woman called Heart. */
/** @type {{ [letter: string]: string }} */
const ACCENTS = {
  a: "American", b: "British", e: "Spanish", f: "French", h: "Hindi", i: "Italian", j: "Japanese", p: "Brazilian",
  z: "Chinese",
};

/** Return what a voice is called. @param {string} voice */
export function voiceName(voice) {
  const [, accent = "", sex = "", name = ""] = /^([a-z])([fm])_([a-z]+)$/.exec(voice) ?? [];
  if (!name || !Object.hasOwn(ACCENTS, accent)) return capital(voice);
  return `${capital(name)} · ${ACCENTS[accent]} ${sex === "f" ? "woman" : "man"}`;
}

/** @param {string} name */
function capital(name) {
  return name.slice(0, 1).toUpperCase() + name.slice(1);
}

/** Return what the form shows of a configuration. @param {{ [key: string]: any }} config @returns {Values} */
export function valuesOf(config) {
  return {
    prompt: String(config.instructions ?? ""),
    voice: String(config.voice ?? ""),
    speed: Number(config.speed ?? 1),
    eagerness: String(config.turns?.eagerness ?? "auto"),
  };
}

/**
 * Return what differs, as a configuration.
 * @param {Values} before
 * @param {Values} after
 * @returns {{ [key: string]: any }}
 */
export function changesOf(before, after) {
  /** @type {{ [key: string]: any }} */
  const changes = {};
  if (after.prompt !== before.prompt) changes.instructions = after.prompt;
  if (after.voice !== before.voice) changes.voice = after.voice;
  if (after.speed !== before.speed) changes.speed = after.speed;
  if (after.eagerness !== before.eagerness) changes.turns = { eagerness: after.eagerness };
  return changes;
}

/** The form in the page. */
export class SettingsForm {
  #prompt = part("prompt", HTMLTextAreaElement);
  #voice = part("voice", HTMLSelectElement);
  #speed = part("speed", HTMLInputElement);
  #eagerness = part("eagerness", HTMLSelectElement);
  #applied = part("applied", HTMLElement);
  #before = this.values;
  #waits = false; // for the server's answer

  /** @param {(changes: { [key: string]: any }) => boolean} apply returns whether it could be said */
  constructor(apply) {
    this.#speed.addEventListener("input", () => this.#showSpeed());
    part("settings-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const changes = changesOf(this.#before, this.values);
      if (!Object.keys(changes).length) return this.#say("Nothing to change");
      if (!apply(changes)) return undefined;
      this.#before = this.values;
      this.#waits = true;
      return this.#say("Will apply from the next reply");
    });
  }

  /** @returns {Values} */
  get values() {
    const [prompt, voice, eagerness] = [this.#prompt.value, this.#voice.value, this.#eagerness.value];
    return { prompt, voice, speed: Number(this.#speed.value), eagerness };
  }

  /** Show what the server has; what somebody is changing stays. @param {{ [key: string]: any }} config */
  show(config) {
    const [edits, values] = [changesOf(this.#before, this.values), valuesOf(config)];
    if (!("instructions" in edits)) this.#prompt.value = values.prompt;
    if (!("voice" in edits)) this.#voice.value = values.voice;
    if (!("speed" in edits)) this.#speed.value = String(values.speed);
    if (!("turns" in edits)) this.#eagerness.value = values.eagerness;
    this.#before = { ...values, voice: this.#offers(values.voice) ? values.voice : this.#voice.value };
    this.#showSpeed();
    if (this.#waits) this.#say("Applied");
    this.#waits = false;
  }

  /** Offer these voices. @param {readonly string[]} voices */
  offer(voices) {
    const chosen = this.#voice.value;
    const options = voices.map((voice) => new Option(voiceName(voice), voice));
    this.#voice.replaceChildren(make("option", { text: "As the server has it" }), ...options);
    this.#voice.options[0].value = "";
    this.#voice.value = this.#offers(chosen) ? chosen : "";
  }

  /** @param {string} voice */
  #offers(voice) {
    return Array.from(this.#voice.options).some((option) => option.value === voice);
  }

  #showSpeed() {
    part("speed-value", HTMLOutputElement).value = `${Number(this.#speed.value).toFixed(1)}×`;
  }

  /** @param {string} words */
  #say(words) {
    this.#applied.textContent = words;
  }
}
