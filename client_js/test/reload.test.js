/** A page after a reload, or back before anything was said: it shows everything once and runs no tool twice. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { answerPing, begin, comeBack } from "./client.js";
import { settle } from "./fakes.js";

/** A reloaded page in a conversation with this history; `told` is what the server sends after it. */
async function reload(history, told, options = {}) {
  const all = await begin(options, { connected: false });
  const connecting = all.client.connect();
  await all.world.greet(20, { resumed: true, history });
  await connecting;
  for (const message of told) all.world.socket.tell(...message);
  await settle();
  return all;
}

const shown = ({ client }) => client.state.lines.map(({ role, heard, unheard }) => `${role}: ${heard}|${unheard}`);
const user = (content) => ({ role: "user", content });
const assistant = (content) => ({ role: "assistant", content });

test("what was understood while the page was loaded again is shown once", async () => {
  const told = [["speech_started", 11, 2, 1], ["user_words", 12, 2, "", "What"], ["user_turn", 21, 2, "What now?"]];
  assert.deepEqual(shown(await reload([user("What now?")], told)), ["user: What now?|"]);
  // Two turns without an answer between them are one entry of the history.
  assert.deepEqual(shown(await reload([user("Well. What now?")], told)), ["user: Well.|", "user: What now?|"]);
});

test("a reply that ended while the page was loaded again is shown once", async () => {
  const told = [["reply", 11, 1, 1], ["reply_text", 12, 1, "One. Two."], ["audio_done", 13, 1, 10]];
  const history = [user("Count."), assistant("One. Two.")];
  const done = await reload(history, [...told, ["reply_done", 14, 1, "One. Two."]]);
  assert.deepEqual(shown(done), ["user: Count.|", "assistant: One. Two.|"]);
  const cut = await reload([user("Count."), assistant("One.")], [...told, ["interrupted", 14, 1, "One.", 5]]);
  assert.deepEqual(shown(cut), ["user: Count.|", "assistant: One.| Two."]);
});

test("what is said again when all was told is a turn of its own", async () => {
  const again = [["speech_started", 22, 2, 1], ["user_turn", 23, 2, "Yes."]];
  const all = await reload([user("Yes."), assistant("Fine.")], [["pong", 12, 1, 0.5]]);
  answerPing(all.world);
  for (const message of again) all.world.socket.tell(...message);
  assert.deepEqual(shown(all), ["user: Yes.|", "assistant: Fine.|", "user: Yes.|"]);
});

test("an answer to a ping of the page before is none to this one's", async () => {
  const { world, client } = await reload([], []);
  const [[, mark]] = world.socket.said("ping");
  world.socket.tell("pong", 12, mark, 0.5);
  assert.equal(client.figures.roundTripMs, -1);
  world.socket.tell("pong", 21, mark, 0.5);
  assert.equal(client.figures.roundTripMs, 0);
});

test("a line that breaks before the first word was told doubles nothing", async () => {
  const all = await begin();
  const history = [user("Hello"), assistant("Hi.")];
  const told = [
    ["speech_started", 2, 1, 1], ["user_turn", 3, 1, "Hello"], ["reply", 4, 1, 1], ["reply_text", 5, 1, "Hi."],
    ["reply_done", 6, 1, "Hi."],
  ];
  await comeBack(all.world, { values: { history }, told });
  assert.deepEqual(shown(all), ["user: Hello|", "assistant: Hi.|"]);
});

test("a tool whose result the server has does not run again in a page that is loaded again", async () => {
  let runs = 0;
  const tools = { order: { description: "", parameters: {}, run: () => `${(runs += 1)}` } };
  const call = { call_id: "c1", name: "order", arguments: "{}" };
  const asked = [user("Tea!"), { role: "assistant", content: "", tool_calls: [call] }];
  const result = { role: "tool", content: "1", call_id: "c1" };
  const told = [["tool_call", 11, 1, "c1", "order", "{}"]];
  await reload([...asked, result], told, { tools });
  assert.equal(runs, 0);
  await reload(asked, told, { tools }); // no answer yet
  assert.equal(runs, 1);
  await reload([...asked, result, ...asked], told, { tools }); // models reuse call ids
  assert.equal(runs, 2);
  const later = await reload([...asked, result], [["tool_call", 21, 2, "c1", "order", "{}"]], { tools });
  assert.equal(runs, 3);
  assert.equal(later.world.socket.said("tool_result").length, 1);
});

test("a tool that is done when its conversation is over answers nobody in the next", async () => {
  let done = (_output) => undefined;
  const tools = { slow: { description: "", parameters: {}, run: () => new Promise((resolve) => (done = resolve)) } };
  for (const values of [{ resumed: true }, { resumed: false, session: "voice-2" }]) {
    const { world } = await begin({ tools });
    world.socket.tell("tool_call", 2, 1, "c1", "slow", "{}");
    await settle();
    await comeBack(world, { values });
    done("late");
    await settle();
    assert.equal(world.socket.said("tool_result").length, values.resumed ? 1 : 0);
  }
});
