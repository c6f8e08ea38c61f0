/** Functions of the page that the assistant may call: declared to the server, run, and answered. */

import { VoiceError } from "./errors.js";
import { say } from "./protocol.js";

/**
 * @typedef {object} Tool
 * @property {string} description
 * @property {object} parameters a JSON schema
 * @property {(args: any) => unknown} [run] may be async; its return value is the output, as JSON unless it is text
 */

/** @typedef {{ [name: string]: Tool }} Tools */

/** Return tools in the form of `config.tools`. @param {Tools} tools */
export function toolConfig(tools) {
  return Object.entries(tools).map(([name, { description, parameters }]) => ({
    name,
    description,
    parameters: JSON.stringify(parameters),
  }));
}

/**
 * @typedef {object} Errands what a toolbox needs from its owner
 * @property {(make: (frameBytes: number) => Uint8Array<ArrayBuffer>) => void} send an answer of limited size;
 *   after the end of the conversation it is dropped
 * @property {(call: import("./events.js").ToolCall) => void} ask the tool has no function: the page may answer itself
 * @property {(error: VoiceError) => void} failed
 */

/** Runs the tools that the assistant calls. */
export class Toolbox {
  #errands;
  #session = ""; // the conversation's name
  #readySeq = 0; // older messages are repetitions
  /** @type {Set<unknown>} Calls that were not answered by then. */
  #open = new Set();

  /** @param {Tools} tools @param {Errands} errands */
  constructor(tools, errands) {
    this.tools = tools;
    this.#errands = errands;
  }

  /** Take a message; those about tools are handled. @param {import("./protocol.js").ServerMessage} message */
  take(message) {
    if (message.name === "ready") this.#begin(message.ready, message.seq);
    if (message.name !== "tool_call") return;
    // After a reload the server repeats calls that the last page has answered.
    if (message.seq > this.#readySeq || this.#open.has(message.call_id)) this.#run(message);
  }

  /** @param {import("./protocol.js").Ready} ready @param {number} seq */
  #begin({ session, history }, seq) {
    this.#session = session;
    this.#readySeq = seq;
    this.#open = openCalls(history);
  }

  /** @param {Extract<import("./protocol.js").ServerMessage, { name: "tool_call" }>} message */
  #run({ call_id: callId, tool: name, arguments: args }) {
    const session = this.#session;
    /** @param {unknown} output */
    const answer = (output) => {
      if (session !== this.#session) return; // in another conversation the same id may belong to another call
      this.#errands.send((frameBytes) => toolResult(callId, output, frameBytes));
    };
    const run = Object.hasOwn(this.tools, name) ? this.tools[name].run : undefined;
    if (run === undefined) this.#errands.ask({ callId, name, arguments: args, answer });
    else void answerCall(async () => run(JSON.parse(args)), answer, (cause) => {
      this.#errands.failed(new VoiceError("tool_failed", `The tool ${name} failed.`, { cause }));
    });
  }
}

/** Return the calls without a result in a history. @param {import("./protocol.js").Ready["history"]} history */
function openCalls(history) {
  const open = new Set();
  for (const { role, call_id: callId, tool_calls: calls } of history) {
    for (const call of Array.isArray(calls) ? calls : []) open.add(Object(call).call_id);
    if (role === "tool") open.delete(callId);
  }
  return open;
}

/**
 * Run a call's function and answer with its output. It is the page's code: if it throws, or its output is not JSON,
 * the answer is an error, and the conversation goes on.
 * @param {() => Promise<unknown>} run
 * @param {(output: unknown) => void} answer
 * @param {(error: unknown) => void} failed
 */
async function answerCall(run, answer, failed) {
  try {
    answer(await run());
  } catch (error) {
    failed(error);
    answer({ error: error instanceof Error ? error.message : String(error) });
  }
}

/**
 * Return a call's answer; if the output is too long, the answer is an error, so that the assistant knows.
 * @param {string} callId
 * @param {unknown} output
 * @param {number} frameBytes
 */
function toolResult(callId, output, frameBytes) {
  const text = typeof output === "string" ? output : (JSON.stringify(output) ?? "null");
  try {
    const frame = say.toolResult(callId, text);
    if (frame.length <= frameBytes) return frame;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return say.toolResult(callId, JSON.stringify({ error: "the output is too long" }));
}
