/**
 * The three models that the page talks to, or the one that answers speech with speech, and how to change them.
 *
 * The server says their names: before a conversation in its list of models, then in its `ready`. It loads them when it
 * starts and cannot exchange them, so the page tells the setting's name instead of offering a choice. `modelsListed`
 * and `modelsReady` are pure; `ModelsView` is the list in the page.
 */

import { part } from "./dom.js";

/**
 * Names; "" where there is none. `speech` is in the place of `chat` and `voice`: it hears, thinks and speaks.
 * @typedef {{ chat: string, listening: string, voice: string, speech: string }} Models
 */
/** @typedef {{ models: Models, voices: string[], languages: string[], instructed: boolean }} Listed */

const NAMES = /** @type {const} */ (["chat", "listening", "voice"]);
const SHOWN = /** @type {const} */ (["speech", ...NAMES]);

/** The tasks of the server's list, by our names. */
const TASKS = { chat: "chat", listening: "asr", voice: "tts" };

/**
 * Return the models in the answer of GET /v1/models; null if it is none.
 * @param {any} answer
 * @returns {Listed | null}
 */
export function modelsListed(answer) {
  if (!Array.isArray(answer?.data)) return null;
  /** @param {string} task */
  const find = (task) => answer.data.find((/** @type {any} */ model) => model?.voxlane?.task === task);
  const voice = find(TASKS.voice);
  const { voices = [], languages = [], instructions = false } = voice?.voxlane ?? {};
  const [chat, listening, speaking] = NAMES.map((name) => String(find(TASKS[name])?.id ?? ""));
  const speech = String(find("speech")?.id ?? "");
  return {
    models: speech ? { chat: "", listening, voice: "", speech } : { chat, listening, voice: speaking, speech },
    voices: speech ? [] : voices.map(String),
    languages: speech ? [] : languages.map(String),
    instructed: !speech && Boolean(instructions),
  };
}

/** Return the models of a conversation. @param {{ [key: string]: any }} capabilities @returns {Models} */
export function modelsReady({ chat_model: chat, asr_model: listening, tts_model: voice, speech_model: speech }) {
  const [of, to, by, both] = [chat, listening, voice, speech].map((name) => String(name ?? "").replace(/^.*[/\\]/, ""));
  return both ? { chat: "", listening: to, voice: "", speech: both } : { chat: of, listening: to, voice: by, speech: "" };
}

/**
 * Ask whether one model answers speech with speech; false if the server does not tell. It needs no key.
 * @param {(path: string) => Promise<{ json(): Promise<any> }>} get
 */
export async function answersSpeech(get) {
  try {
    return Boolean((await (await get("/healthz")).json()).speech_model);
  } catch (error) {
    if (error instanceof TypeError || error instanceof SyntaxError) return false; // as in `askModels`
    throw error;
  }
}

/**
 * Ask the server for its models; null if it does not tell, as without the right key.
 *
 * A request that needs a key is not sent without one: the browser's console would show its refusal as an error.
 * @param {(path: string, headers: Record<string, string>) => Promise<{ ok: boolean, json(): Promise<any> }>} get
 * @param {string} key "" if there is none
 */
export async function askModels(get, key) {
  try {
    if (!key && (await (await get("/livez", {})).json()).key_needed) return null;
    const answer = await get("/v1/models", key ? { authorization: `Bearer ${key}` } : {});
    return answer.ok ? modelsListed(await answer.json()) : null;
  } catch (error) {
    // A TypeError means that the network failed, a SyntaxError that the answer is not the server's.
    if (error instanceof TypeError || error instanceof SyntaxError) return null;
    throw error;
  }
}

/** The list in the panel, and a line under the welcome. */
export class ModelsView {
  /** @type {Models} */
  models = { chat: "", listening: "", voice: "", speech: "" };

  /** @param {Models} models */
  show(models) {
    this.models = models;
    for (const name of SHOWN) part(`model-${name}`, HTMLElement).textContent = models[name] || "none";
    part("model-speech-row", HTMLElement).hidden = !models.speech;
    for (const name of ["chat", "voice"]) part(`model-${name}-row`, HTMLElement).hidden = models.speech !== "";
    part("models-command", HTMLElement).textContent = `voxlane serve --${models.speech ? "speech-" : ""}model NAME`;
    part("models", HTMLElement).hidden = false;
    const named = SHOWN.map((name) => models[name]).filter(Boolean);
    // The space before a dot does not break: on a phone the line is too long, and no row begins with a dot.
    const line = named.join("\u00a0· ");
    Object.assign(part("models-line", HTMLElement), { textContent: line, hidden: !named.length });
  }
}
