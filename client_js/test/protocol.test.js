import assert from "node:assert/strict";
import { test } from "node:test";

import { decode, encode, MsgpackError } from "../msgpack.js";
import { judgeClose, parseMessage, ProtocolError, say } from "../protocol.js";
import { readData, readyMap, unhex } from "./support.js";

/** What the recording must hold. */
const MESSAGES = [
  "ready", "state", "user_turn", "reply", "reply_text", "audio", "audio_done", "reply_done", "turn_done", "latency",
  "interrupted", "tool_call", "configured", "pong", "error", "bye",
];

test("the specification's examples", () => {
  const hex = (bytes) => Buffer.from(bytes).toString("hex");
  assert.equal(hex(say.audio(new Uint8Array([1, 0, 2, 0]))), "92a5617564696fc40401000200");
  assert.equal(hex(say.played(1, 4800, 960)), "94a6706c6179656401cd12c0cd03c0");
  const message = parseMessage(unhex("93a5737461746504a87468696e6b696e67"));
  assert.deepEqual(message, { name: "state", seq: 4, state: "thinking" });
});

test("fields, keys and messages that a newer server adds are no error", () => {
  assert.deepEqual(parseMessage(encode(["hold", 3, 1, "new"])), { name: "hold", seq: 3, epoch: 1 });
  const unknown = { name: "unknown", seq: 3, called: "mood", fields: ["good", 7] };
  assert.deepEqual(parseMessage(encode(["mood", 3, "good", 7])), unknown);
  assert.equal(parseMessage(encode(["ready", 1, readyMap({ colour: "red" })])).ready.colour, "red");
  assert.equal(parseMessage(encode(["toString", 3])).name, "unknown");
});

test("what is recorded is told; of an older server that is nothing", () => {
  assert.deepEqual(parseMessage(encode(["ready", 1, readyMap()])).ready.recorded, []);
  const recorded = ["audio", "transcript"];
  assert.deepEqual(parseMessage(encode(["ready", 1, readyMap({ recorded })])).ready.recorded, recorded);
});

test("what is not a message is refused", () => {
  const refused = [
    null, [], ["state"], [1, 1], ["state", -1, "held"], ["state", 1.5, "held"], ["state", 1, "dancing"], ["state", 1],
    ["audio", 1, 1, 0, "text", []], ["audio", 1, 1, 0, new Uint8Array(2), [[1, 2, 3]]],
    ["audio", 1, 1, 0, new Uint8Array(2), [[1, 2, 3, -4]]], ["hold", 1, -1], ["duck", 1, 1], ["duck", 1, 1, "low"], ["error", 1, "x", "y", 1, 0],
    ["ready", 1], ["ready", 1, null], ["ready", 1, readyMap({ played: [1] })], ["ready", 1, readyMap({ limits: {} })],
    ["ready", 1, readyMap({ history: [{ role: "user" }] })], ["ready", 1, readyMap({ token: undefined })],
    ["ready", 1, readyMap({ recorded: [1] })], ["ready", 1, readyMap({ recorded: "audio" })],
  ];
  for (const parts of refused) assert.throws(() => parseMessage(encode(parts)), ProtocolError, JSON.stringify(parts));
  assert.throws(() => parseMessage(new Uint8Array([0xc1])), MsgpackError);
});

test("texts are as long as the server takes them, in its characters", () => {
  assert.equal(decode(say.text("🎉".repeat(16000)))[1].length, 32000);
  assert.throws(() => say.text("x".repeat(16001)), RangeError);
  assert.throws(() => say.toolResult("call", "x".repeat(32001)), RangeError);
});

test("every close of the specification's table", () => {
  const usual = { afterError: false, resuming: false };
  const table = {
    1000: "done", 1001: "resume", 1005: "resume", 1006: "resume", 1007: "failed", 1009: "failed", 1011: "resume",
    1012: "anew", 1013: "anew", 1014: "resume", 4400: "failed", 4401: "failed", 4408: "failed", 4409: "failed",
    4429: "failed", 4440: "failed", 4999: "failed",
  };
  for (const [code, verdict] of Object.entries(table)) assert.equal(judgeClose(Number(code), usual), verdict, code);
  assert.equal(judgeClose(1011, { ...usual, afterError: true }), "anew");
  assert.equal(judgeClose(1012, { ...usual, handedOver: true }), "resume");
  assert.equal(judgeClose(1012, { ...usual, afterError: true }), "anew");
  assert.equal(judgeClose(4401, { ...usual, resuming: true }), "anew");
  assert.equal(judgeClose(1013, { ...usual, resuming: true }), "resume");
});

test("a recorded exchange with the server is understood to the last message", () => {
  const { server, client } = readData("exchange.json");
  const messages = server.map((hex) => parseMessage(unhex(hex)));
  assert.ok(messages.every(({ name }) => name !== "unknown"));
  assert.deepEqual(messages.map(({ seq }) => seq), messages.map((_, place) => place + 1));
  const names = new Set(messages.map(({ name }) => name));
  for (const name of MESSAGES) assert.ok(names.has(name), name);
  for (const hex of client) assert.equal(Buffer.from(encode(decode(unhex(hex)))).toString("hex"), hex);
});
