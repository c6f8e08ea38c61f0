import assert from "node:assert/strict";
import { test } from "node:test";

import { askModels, modelsListed, modelsReady } from "../demo/models.js";

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
  assert.deepEqual(models, { chat: "small", listening: "ears", voice: "mouth" });
  assert.deepEqual([voices, languages, instructed], [["alba", "berta"], [], false]);
  assert.deepEqual(modelsListed({ data: [] }).models, { chat: "", listening: "", voice: "" });
  for (const other of [null, {}, { error: {} }]) assert.equal(modelsListed(other), null);
});

test("a conversation names its models, without the folders they lie in", () => {
  const told = { chat_model: "/models/My-Model", asr_model: "ears", tts_model: "" };
  assert.deepEqual(modelsReady(told), { chat: "My-Model", listening: "ears", voice: "" });
  assert.deepEqual(modelsReady({}), { chat: "", listening: "", voice: "" });
});

test("a server that does not tell its models is no trouble", async () => {
  const answer = (ok, json) => async () => ({ ok, json });
  assert.equal((await askModels(answer(true, async () => LIST))).models.chat, "small");
  assert.equal(await askModels(answer(false, async () => ({ error: {} }))), null);
  for (const error of [new TypeError("no network"), new SyntaxError("no JSON")]) {
    assert.equal(await askModels(async () => Promise.reject(error)), null);
  }
  await assert.rejects(askModels(async () => Promise.reject(new RangeError("ours"))), RangeError);
});
