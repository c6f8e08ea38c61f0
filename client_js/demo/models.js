/**
 * The three models that the page talks to, and how to change them.
 *
 * The server says their names: before a conversation in its list of models, then in its `ready`. It loads them when it
 * starts and cannot exchange them, so the page tells the setting's name instead of offering a choice. `modelsListed`
 * and `modelsReady` are pure; `ModelsView` is the list in the page.
 */

import { part } from "./dom.js";

/** @typedef {{ chat: string, listening: string, voice: string }} Models names; "" where there is none */
/** @typedef {{ models: Models, voices: string[], languages: string[], instructed: boolean }} Listed */

const NAMES = /** @type {const} */ (["chat", "listening", "voice"]);

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
  const both = find("speech")?.id; // It answers speech with speech: no chat model, and no other voice.
  return {
    models: both ? { chat: String(both), listening, voice: String(both) } : { chat, listening, voice: speaking },
    voices: both ? [] : voices.map(String),
    languages: both ? [] : languages.map(String),
    instructed: !both && Boolean(instructions),
  };
}

/** Return the models of a conversation. @param {{ [key: string]: any }} capabilities @returns {Models} */
export function modelsReady({ chat_model: chat = "", asr_model: listening = "", tts_model: voice = "" }) {
  const [of, to, by] = [chat, listening, voice].map((name) => String(name).replace(/^.*[/\\]/, ""));
  return { chat: of, listening: to, voice: by };
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
  models = { chat: "", listening: "", voice: "" };

  /** @param {Models} models */
  show(models) {
    this.models = models;
    for (const name of NAMES) part(`model-${name}`, HTMLElement).textContent = models[name] || "none";
    part("models", HTMLElement).hidden = false;
    const named = NAMES.map((name) => models[name]).filter(Boolean);
    // The space before a dot does not break: on a phone the line is too long, and no row begins with a dot.
    const line = named.join("\u00a0· ");
    Object.assign(part("models-line", HTMLElement), { textContent: line, hidden: !named.length });
  }
}
