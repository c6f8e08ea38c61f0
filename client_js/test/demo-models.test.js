import assert from "node:assert/strict";
import { test } from "node:test";

import { answersSpeech, askModels, modelsListed, modelsReady } from "../demo/models.js";

const LIST = {
  data: [
    { id: "small", voxlane: { task: "chat" } },
    { id: "gpt-4o-mini", voxlane: { task: "chat" } },
    { id: "ears", voxlane: { task: "asr", languages: ["en"] } },
    { id: "mouth", voxlane: { task: "tts", voices: ["alba", "berta"], sample_rate: 24000 } },
  ],
};

test("the three models are found in the server's list, the chat model by its own name", () => {
  const { models, voices, languages, instructed } = modelsListed(LIST);
  assert.deepEqual(models, { chat: "small", listening: "ears", voice: "mouth", speech: "" });
  assert.deepEqual([voices, languages, instructed], [["alba", "berta"], [], false]);
  assert.deepEqual(modelsListed({ data: [] }).models, { chat: "", listening: "", voice: "", speech: "" });
  for (const other of [null, {}, { error: {} }]) assert.equal(modelsListed(other), null);
});

test("a model that answers speech with speech takes the place of the chat model and the voice", () => {
  const both = { id: "both", voxlane: { task: "speech", sample_rate: 24000 } };
  const told = { task: "tts", voices: ["a"], languages: ["german"], instructions: true };
  const { models, ...offered } = modelsListed({ data: [{ id: "voice", voxlane: told }, ...LIST.data, both] });
  assert.deepEqual(models, { chat: "", listening: "ears", voice: "", speech: "both" });
  assert.deepEqual(offered, { voices: [], languages: [], instructed: false });
});

test("a conversation names its models, without the folders they lie in", () => {
  const told = { chat_model: "/models/My-Model", asr_model: "ears", tts_model: "" };
  assert.deepEqual(modelsReady(told), { chat: "My-Model", listening: "ears", voice: "", speech: "" });
  assert.deepEqual(modelsReady({}), { chat: "", listening: "", voice: "", speech: "" });
  const both = { chat_model: "both", asr_model: "ears", tts_model: "both", speech_model: "/models/both" };
  assert.deepEqual(modelsReady(both), { chat: "", listening: "ears", voice: "", speech: "both" });
});

test("a server that lists nothing without a key tells whether one model answers speech with speech", async () => {
  const health = (body) => async (path) => ({ json: async () => (path === "/healthz" ? body : {}) });
  assert.equal(await answersSpeech(health({ status: "ready", speech_model: "both" })), true);
  assert.equal(await answersSpeech(health({ status: "ready", speech_model: "" })), false);
  for (const error of [new TypeError("no network"), new SyntaxError("no JSON")]) {
    assert.equal(await answersSpeech(async () => Promise.reject(error)), false);
  }
  await assert.rejects(answersSpeech(async () => Promise.reject(new RangeError("ours"))), RangeError);
});

test("a server that does not tell its models is no trouble", async () => {
  const answer = (ok, json) => async () => ({ ok, json });
  assert.equal((await askModels(answer(true, async () => LIST), "key")).models.chat, "small");
  assert.equal(await askModels(answer(false, async () => ({ error: {} })), "key"), null);
  for (const error of [new TypeError("no network"), new SyntaxError("no JSON")]) {
    for (const key of ["", "key"]) assert.equal(await askModels(async () => Promise.reject(error), key), null);
  }
  await assert.rejects(askModels(async () => Promise.reject(new RangeError("ours")), ""), RangeError);
});

test("no request that needs a key is sent without one", async () => {
  const asked = [];
  const server = (needed) => async (path, headers) => {
    asked.push([path, headers.authorization]);
    return { ok: true, json: async () => (path === "/livez" ? { key_needed: needed } : LIST) };
  };
  assert.equal(await askModels(server(true), ""), null);
  assert.equal((await askModels(server(false), "")).models.chat, "small");
  assert.equal((await askModels(server(true), "right")).models.chat, "small");
  const expected = [["/livez"], ["/livez"], ["/v1/models"], ["/v1/models", "Bearer right"]];
  assert.deepEqual(asked.map((one) => one.filter(Boolean)), expected);
});
