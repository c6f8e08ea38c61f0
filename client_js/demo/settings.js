/**
 * The assistant's settings: from the server's configuration to the form, and from the form to changes.
 *
 * `offersOf`, `configFor`, `valuesOf`, `valuesGiven`, `changesOf` and `voiceName` are pure; `SettingsForm` is the form in
 * the page. Settings that a server's voices lack are not offered: asking for them would end the conversation.
 */

import { merge } from "../settings.js";
import { part } from "./dom.js";

/**
 * `language` and `manner` belong to the voice: what it speaks, and how.
 * @typedef {object} Values
 * @property {string} prompt
 * @property {string} voice
 * @property {string} language
 * @property {string} manner
 * @property {number} speed
 * @property {string} eagerness
 */

/**
 * `own`: the model that answers has a voice of its own, and calls no tools.
 * @typedef {{ voices: string[], languages: string[], instructed: boolean, paced: boolean, own: boolean }} Offers
 */

/** What a model with a voice of its own is asked for, whatever was asked of another server. */
const OWN = { voice: "", voice_language: "", voice_instructions: "", speed: 1, tools: [] };

/** The meaning of the letters in Kokoro's voice names: `af_heart` is an American woman called Heart. */
/** @type {{ [letter: string]: string }} */
const ACCENTS = {
  a: "American", b: "British", e: "Spanish", f: "French", h: "Hindi", i: "Italian", j: "Japanese", p: "Brazilian",
  z: "Chinese",
};

/** Return a voice's name for people. @param {string} voice */
export function voiceName(voice) {
  const [, accent = "", sex = "", name = ""] = /^([a-z])([fm])_([a-z]+)$/.exec(voice) ?? [];
  if (!name || !Object.hasOwn(ACCENTS, accent)) return capital(voice);
  return `${capital(name)} · ${ACCENTS[accent]} ${sex === "f" ? "woman" : "man"}`;
}

/** Return the settings that a server's voices offer. @param {{ [key: string]: any }} capabilities @returns {Offers} */
export function offersOf({ voices, voice_languages: languages, instructed = false, one_pace: onePace = false, ...others }) {
  const own = Boolean(others.speech_model);
  return { voices: texts(voices), languages: texts(languages), instructed, paced: !onePace, own };
}

/**
 * Return a configuration for a model that may have a voice of its own.
 * @param {{ [key: string]: any }} config
 * @param {boolean} own
 */
export function configFor(config, own) {
  return own ? merge(config, OWN) : config;
}

/** @param {unknown} values @returns {string[]} */
function texts(values) {
  return Array.isArray(values) ? values.map(String) : [];
}

/** @param {string} name */
function capital(name) {
  return name.slice(0, 1).toUpperCase() + name.slice(1);
}

/** Return the form's values for a configuration. @param {{ [key: string]: any }} config @returns {Values} */
export function valuesOf(config) {
  return {
    prompt: String(config.instructions ?? ""),
    voice: String(config.voice ?? ""),
    language: String(config.voice_language ?? ""),
    manner: String(config.voice_instructions ?? ""),
    speed: Number(config.speed ?? 1),
    eagerness: String(config.turns?.eagerness ?? "auto"),
  };
}

/** Return the form's values for the keys that a configuration has. @param {{ [key: string]: any }} config */
export function valuesGiven(config) {
  const usual = valuesOf({});
  const given = Object.entries(valuesOf(config)).filter(([name, value]) => value !== usual[/** @type {keyof Values} */ (name)]);
  return /** @type {Partial<Values>} */ (Object.fromEntries(given));
}

/**
 * Return the differences, as a configuration.
 * @param {Values} before
 * @param {Values} after
 * @returns {{ [key: string]: any }}
 */
export function changesOf(before, after) {
  /** @type {{ [key: string]: any }} */
  const changes = {};
  if (after.prompt !== before.prompt) changes.instructions = after.prompt;
  if (after.voice !== before.voice) changes.voice = after.voice;
  if (after.language !== before.language) changes.voice_language = after.language;
  if (after.manner !== before.manner) changes.voice_instructions = after.manner;
  if (after.speed !== before.speed) changes.speed = after.speed;
  if (after.eagerness !== before.eagerness) changes.turns = { eagerness: after.eagerness };
  return changes;
}

/** The form in the page. */
export class SettingsForm {
  #prompt = part("prompt", HTMLTextAreaElement);
  #voice = part("voice", HTMLSelectElement);
  #language = part("language", HTMLSelectElement);
  #manner = part("manner", HTMLTextAreaElement);
  #speed = part("speed", HTMLInputElement);
  #eagerness = part("eagerness", HTMLSelectElement);
  #applied = part("applied", HTMLElement);
  #before = this.values;
  #waits = false; // whether the server's answer is awaited

  /** @param {(changes: { [key: string]: any }) => boolean} apply returns whether it could be sent */
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
    return {
      prompt: this.#prompt.value,
      voice: this.#voice.value,
      language: this.#language.value,
      manner: this.#manner.value,
      speed: Number(this.#speed.value),
      eagerness: this.#eagerness.value,
    };
  }

  /** Show the server's configuration; fields being changed stay. @param {{ [key: string]: any }} config */
  show(config) {
    const [edits, values] = [changesOf(this.#before, this.values), valuesOf(config)];
    if (!("instructions" in edits)) this.#prompt.value = values.prompt;
    if (!("voice" in edits)) this.#voice.value = values.voice;
    if (!("voice_language" in edits)) this.#language.value = values.language;
    if (!("voice_instructions" in edits)) this.#manner.value = values.manner;
    if (!("speed" in edits)) this.#speed.value = String(values.speed);
    if (!("turns" in edits)) this.#eagerness.value = values.eagerness;
    this.#before = {
      ...values,
      voice: offered(this.#voice, values.voice) ? values.voice : this.#voice.value,
      language: offered(this.#language, values.language) ? values.language : this.#language.value,
    };
    this.#showSpeed();
    if (this.#waits) this.#say("Applied");
    this.#waits = false;
  }

  /** Show settings that the next conversation will begin with. @param {{ [key: string]: any }} config */
  restore(config) {
    const values = { ...this.values, ...valuesGiven(config) };
    for (const [list, value] of /** @type {const} */ ([[this.#voice, values.voice], [this.#language, values.language]])) {
      if (!offered(list, value)) list.append(new Option(capital(value), value)); // the server will offer its own
      list.value = value;
    }
    this.#prompt.value = values.prompt;
    this.#manner.value = values.manner;
    this.#speed.value = String(values.speed);
    this.#eagerness.value = values.eagerness;
    this.#before = this.values;
    this.#showSpeed();
  }

  /** Offer the settings of the server's voices. @param {Offers} offers */
  offer({ voices, languages, instructed, paced, own }) {
    fill(this.#voice, "As the server has it", voices, voiceName);
    fill(this.#language, "As the reply is written", languages, capital);
    for (const row of ["voice-row", "tools-row"]) part(row, HTMLElement).hidden = own;
    part("language-row", HTMLElement).hidden = !languages.length;
    part("manner-row", HTMLElement).hidden = !instructed;
    part("speed-row", HTMLElement).hidden = !paced;
    // A field that is no longer visible is no longer being changed.
    if (!languages.length) this.#language.value = this.#before.language = "";
    if (!instructed) this.#manner.value = this.#before.manner;
    if (!paced) this.#speed.value = String(this.#before.speed);
  }

  #showSpeed() {
    part("speed-value", HTMLOutputElement).value = `${Number(this.#speed.value).toFixed(1)}×`;
  }

  /** @param {string} words */
  #say(words) {
    this.#applied.textContent = words;
  }
}

/**
 * Put choices into a list, the default first; the chosen one stays, if it is still there.
 * @param {HTMLSelectElement} list
 * @param {string} usual
 * @param {readonly string[]} values
 * @param {(value: string) => string} nameOf
 */
function fill(list, usual, values, nameOf) {
  const chosen = list.value;
  list.replaceChildren(new Option(usual, ""), ...values.map((value) => new Option(nameOf(value), value)));
  list.value = offered(list, chosen) ? chosen : "";
}

/** @param {HTMLSelectElement} list @param {string} value */
function offered(list, value) {
  return Array.from(list.options).some((option) => option.value === value);
}
