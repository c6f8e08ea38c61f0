/** Functions of the page that the assistant may call: how they are told to the server, run, and answered for. */

import { say } from "./protocol.js";

/**
 * @typedef {object} Tool
 * @property {string} description
 * @property {object} parameters a JSON schema
 * @property {(args: any) => unknown} [run] may be async; what it returns is the output, as JSON unless it is text
 */

/** @typedef {{ [name: string]: Tool }} Tools */

/** Return tools as `config.tools` has them. @param {Tools} tools */
export function toolConfig(tools) {
  return Object.entries(tools).map(([name, { description, parameters }]) => ({
    name,
    description,
    parameters: JSON.stringify(parameters),
  }));
}

/**
 * Return the function for a call, undefined if the page has given none.
 * @param {Tools} tools
 * @param {string} name
 * @param {string} args JSON as text
 * @returns {(() => Promise<unknown>) | undefined}
 */
export function findTool(tools, name, args) {
  const run = Object.hasOwn(tools, name) ? tools[name].run : undefined;
  return run && (async () => run(JSON.parse(args)));
}

/**
 * Run a call's function and answer for it. It is the page's code: whatever it throws, and an output that is no JSON, is
 * answered for by an error, and the conversation goes on.
 * @param {() => Promise<unknown>} run
 * @param {(output: unknown) => void} answer
 * @param {(error: unknown) => void} failed
 */
export async function answerCall(run, answer, failed) {
  try {
    answer(await run());
  } catch (error) {
    failed(error);
    answer({ error: error instanceof Error ? error.message : String(error) });
  }
}

/**
 * Return a call's answer; an output that is too long is answered for by an error, so that the assistant knows.
 * @param {string} callId
 * @param {unknown} output
 * @param {number} frameBytes
 */
export function toolResult(callId, output, frameBytes) {
  const text = typeof output === "string" ? output : (JSON.stringify(output) ?? "null");
  try {
    const frame = say.toolResult(callId, text);
    if (frame.length <= frameBytes) return frame;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return say.toolResult(callId, JSON.stringify({ error: "the output is too long" }));
}
