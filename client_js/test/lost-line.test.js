/** What a line swallows that was dead before anybody knew: what was said is said again, and nothing is said twice. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Connection } from "../connection.js";
import { say } from "../protocol.js";
import { begin, silence } from "./client.js";
import { FakeWorld, settle } from "./fakes.js";

/** Break the line, and take the conversation up again; `told` is what the server tells again. */
async function comeBack(world, { values = {}, told = [] } = {}) {
  world.socket.drop();
  await world.clock.pass(4000);
  await world.greet(90, { resumed: true, ...values });
  for (const message of told) world.socket.tell(...message);
}

/** Answer the newest ping: all that was to be told again has been told. */
function answerPing(world) {
  const [, mark] = world.socket.said("ping").at(-1);
  world.socket.tell("pong", 0, mark, 0);
}

test("a text that never arrived is said again, one whose turn is told again is not", async () => {
  for (const arrived of [false, true]) {
    const { world, client } = await begin();
    answerPing(world);
    client.say(" Hello? ");
    await comeBack(world, { told: arrived ? [["user_turn", 2, 1, "Hello?"]] : [] });
    assert.deepEqual(world.socket.said("text"), []); // it may still be told
    answerPing(world);
    assert.deepEqual(world.socket.said("text"), arrived ? [] : [["text", " Hello? "]]);
    world.socket.tell("user_turn", 91, 1, "Hello?");
    await comeBack(world);
    answerPing(world);
    assert.deepEqual(world.socket.said("text"), []);
  }
});

test("the same text twice is two turns: the first one's does not stand for the second", async () => {
  const { world, client } = await begin();
  client.say("Yes");
  world.socket.tell("user_turn", 2, 1, "Yes");
  client.say("Yes");
  await comeBack(world);
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), [["text", "Yes"]]);
});

test("what a ping was answered behind is not said again; what waits for a connection is said once", async () => {
  const { world, client } = await begin();
  client.say("first"); // behind the ping of the greeting
  answerPing(world);
  await world.clock.pass(3000);
  answerPing(world);
  world.socket.drop();
  client.say("second");
  await world.clock.pass(4000);
  await world.greet(9, { resumed: true });
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), [["text", "second"]]);
});

test("a line that breaks again before it is known loses nothing", async () => {
  const { world, client } = await begin();
  client.say("Hello?");
  await comeBack(world);
  await comeBack(world);
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), [["text", "Hello?"]]);
});

test("a tool's result that may be lost is said again, in the same conversation", async () => {
  const tools = { now: { description: "", parameters: {}, run: () => "noon" } };
  for (const resumed of [true, false]) {
    const { world } = await begin({ tools });
    world.socket.tell("tool_call", 2, 1, "c1", "now", "{}");
    await settle();
    assert.equal(world.socket.said("tool_result").length, 1);
    await comeBack(world, { values: { resumed } });
    answerPing(world);
    assert.deepEqual(world.socket.said("tool_result"), resumed ? [["tool_result", "c1", "noon"]] : []);
  }
});

test("a button that is held when the line comes back is pressed there too", async () => {
  for (const state of ["hearing", "listening"]) {
    const { world, client } = await begin();
    client.press();
    await comeBack(world, { values: { state } });
    assert.equal(world.socket.said("start").length, state === "hearing" ? 0 : 1);
  }
});

test("a turn ends though its microphone goes before the last frame", async () => {
  for (const go of [({ client }) => client.hush(), ({ audio }) => audio.handlers.microphoneLost()]) {
    const all = await begin();
    await all.client.talk();
    all.client.press();
    all.audio.handlers.frame(silence());
    all.client.release();
    assert.equal(all.world.socket.said("end").length, 0);
    go(all);
    assert.equal(all.world.socket.said("end").length, 1);
    all.client.hush();
    assert.equal(all.world.socket.said("end").length, 1);
  }
});

const SOUND = ["audio", 3, 4, 0, new Uint8Array(4800), []];

/** A conversation in which reply 4 speaks. */
async function speaking() {
  const all = await begin();
  await all.client.listen();
  all.world.socket.tell("reply", 2, 4, 1);
  all.world.socket.tell(...SOUND);
  return all;
}

test("a stop that was lost is said again as soon as the server goes on", async () => {
  const { world, client } = await speaking();
  await client.interrupt();
  await comeBack(world);
  assert.deepEqual(world.socket.said("stop"), []); // as far as is known, it is silent
  await comeBack(world);
  world.socket.tell(...SOUND);
  world.socket.tell("audio", 91, 4, 2400, new Uint8Array(4800), []);
  assert.deepEqual(world.socket.said("stop"), [["stop"]]);
});

test("a stop is not said again where the server knows, or is told while away, or is silenced otherwise", async () => {
  const known = await speaking();
  await known.client.interrupt();
  known.world.socket.tell("interrupted", 4, 4, "", 0);
  await comeBack(known.world, { told: [["reply", 91, 5, 2], ["audio", 92, 5, 0, new Uint8Array(4800), []]] });
  assert.deepEqual(known.world.socket.said("stop"), []);

  const away = await speaking();
  away.world.socket.drop();
  await away.client.interrupt();
  await away.world.clock.pass(4000);
  await away.world.greet(9, { resumed: true });
  away.world.socket.tell(...SOUND);
  assert.deepEqual(away.world.socket.said("stop"), [["stop"]]);

  for (const act of [(client) => client.say("Hello"), (client) => client.press()]) {
    const { world, client } = await speaking();
    await client.interrupt();
    world.socket.drop();
    act(client);
    await world.clock.pass(4000);
    await world.greet(9, { resumed: true });
    world.socket.tell(...SOUND);
    assert.deepEqual(world.socket.said("stop"), []); // it would silence the answer
  }
});

test("a reply whose end was told before the break ends there too: no sample is missing, none is too many", async () => {
  const { world, audio } = await speaking();
  world.socket.tell("audio_done", 4, 4, 2400);
  await comeBack(world);
  audio.orders.length = 0;
  world.socket.tell(...SOUND);
  assert.deepEqual(audio.orders.map((order) => order.do), ["push", "finish"]);
  const [push, finish] = audio.orders;
  assert.equal(push.offset, 0);
  assert.equal(finish.offset, push.samples.length);
  assert.equal(push.samples.length + finish.samples.length, 4800);
  assert.equal(finish.end, 4800);
});

test("who leaves a conversation in the midst of a hello begins another", async () => {
  const world = new FakeWorld();
  const handlers = { message() {}, ready() {}, status() {}, over() {}, pong() {}, position: async () => null };
  const connection = new Connection("ws://here/v1/voice", () => ({}), handlers, world.environment);
  connection.start({ token: "stored", lastSeq: 3 });
  world.socket.open();
  await settle();
  assert.equal(world.socket.said("hello")[0][1].resume, "stored");
  connection.renew();
  assert.equal(connection.send(say.stop()), true); // kept, and dropped with the conversation
  await world.clock.pass(4000);
  assert.equal(world.sockets.length, 2);
  await world.greet();
  assert.deepEqual(world.socket.said("hello"), [["hello", {}]]);
  assert.deepEqual(world.socket.said("stop"), []);
});
