/** Messages lost with a line that was dead before this was known: they are sent again, and none arrives twice. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Connection } from "../connection.js";
import { say } from "../protocol.js";
import { answerPing, begin, comeBack, silence, SOUND, speaking } from "./client.js";
import { FakeStorage, FakeWorld, settle } from "./fakes.js";

test("a text that never arrived is said again, one whose turn is told again is not", async () => {
  for (const arrived of [false, true]) {
    const { world, client } = await begin();
    answerPing(world);
    client.say(" Hello? ");
    await comeBack(world, { told: arrived ? [["user_turn", 2, 1, "Hello?"]] : [] });
    assert.deepEqual(world.socket.said("text"), []); // the server may still repeat it
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

test("two equal texts at once are two turns: one that is told does not stand for both", async () => {
  const { world, client } = await begin();
  client.say("Yes");
  client.say("Yes");
  await comeBack(world, { told: [["user_turn", 2, 1, "Yes"]] });
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), [["text", "Yes"]]);
});

test("a text that is typed again while the line is away does not stand for the one that arrived", async () => {
  const { world, client } = await begin();
  client.say("Hello?");
  world.socket.drop();
  client.say("Hello?");
  await world.clock.pass(4000);
  await world.greet(90, { resumed: true });
  world.socket.tell("user_turn", 2, 1, "Hello?");
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), [["text", "Hello?"]]);
});

test("a text is known by its turn, however the server writes its edges", async () => {
  for (const [typed, told] of [["Hi\uFEFF", "Hi\uFEFF"], ["Hi\x85", "Hi"], ["Hi \ud83d", "Hi \uFFFD"]]) {
    const { world, client } = await begin();
    client.say(typed);
    await comeBack(world, { told: [["user_turn", 2, 1, told]] });
    answerPing(world);
    assert.deepEqual(world.socket.said("text"), []);
  }
});

test("a text that is typed again after a reload is a turn of its own", async () => {
  const { world, client } = await begin({}, { connected: false });
  const connecting = client.connect();
  const history = [{ role: "user", content: "Yes" }, { role: "assistant", content: "Fine." }];
  await world.greet(9, { resumed: true, history });
  await connecting;
  client.say("Yes");
  world.socket.tell("user_turn", 10, 3, "Yes");
  assert.deepEqual(client.state.lines.map(({ heard }) => heard), ["Yes", "Fine.", "Yes"]);
  await comeBack(world);
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), []);
});

test("what a ping was answered behind is not said again; what waits for a connection is said once", async () => {
  const { world, client } = await begin();
  client.say("first"); // after the ping of the greeting
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

test("a button that was let go on a dead line is let go there too", async () => {
  for (const state of ["hearing", "thinking"]) {
    const { world, client, audio } = await begin({ config: { turns: { mode: "manual" } } });
    answerPing(world);
    await client.talk();
    client.press();
    world.socket.tell("state", 2, "hearing");
    client.release();
    audio.handlers.frame(silence());
    assert.equal(world.socket.said("end").length, 1);
    await comeBack(world, { values: { state } });
    answerPing(world);
    assert.equal(world.socket.said("end").length, state === "hearing" ? 1 : 0);
  }
});

test("the end of a turn comes before an interruption behind it", async () => {
  const { world, client } = await begin({}, { connected: false });
  const connecting = client.connect();
  const config = { turns: { mode: "manual" } };
  await world.greet(1, { config });
  await connecting;
  client.press();
  client.release(); // lost with the line
  world.socket.drop();
  await client.interrupt();
  await world.clock.pass(4000);
  await world.greet(90, { resumed: true, state: "hearing", config });
  const said = world.socket.sent.map(([name]) => name);
  assert.deepEqual(said.slice(1, 3), ["end", "stop"]);
});

test("a button that is pressed again is not let go by the end of the press before", async () => {
  const { world, client } = await begin();
  client.press();
  client.release();
  world.socket.drop();
  client.press();
  await world.clock.pass(4000);
  await world.greet(90, { resumed: true, state: "hearing" });
  answerPing(world);
  assert.equal(world.socket.said("end").length, 0);
});

test("a page that is loaded again holds no button: the turn that it finds open ends", async () => {
  for (const mode of ["manual", "auto"]) {
    const storage = new FakeStorage();
    await begin({ storage });
    const { world, client } = await begin({ storage }, { connected: false });
    const connecting = client.connect();
    await world.greet(9, { resumed: true, state: "hearing", config: { turns: { mode } } });
    await connecting;
    assert.equal(world.socket.said("end").length, mode === "manual" ? 1 : 0);
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

test("a reply that was asked for on a dead line is asked for again, unless there is one", async () => {
  for (const { told, state } of [
    { told: [], state: "listening" },
    { told: [], state: "thinking" },
    { told: [["reply", 2, 1, 1], ["reply_done", 3, 1, "Yes."]], state: "listening" },
  ]) {
    const { world, client } = await begin();
    client.respond();
    await comeBack(world, { told, values: { state } });
    answerPing(world);
    assert.equal(world.socket.said("respond").length, told.length || state === "thinking" ? 0 : 1);
  }
});

test("a text that was taken back does not stand for the same one typed again", async () => {
  const { world, client } = await begin();
  client.say("Yes");
  await client.interrupt();
  await comeBack(world); // it never arrived
  answerPing(world);
  client.say("Yes");
  world.socket.tell("user_turn", 91, 1, "Yes");
  await comeBack(world);
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), []);
});

test("texts stay in the order in which they were typed", async () => {
  for (const stops of [false, true]) {
    const { world, client } = await begin();
    answerPing(world);
    client.say("A");
    world.socket.drop();
    client.say("B");
    await world.clock.pass(4000);
    await world.greet(90, { resumed: true });
    client.say("C");
    assert.deepEqual(world.socket.said("text"), []); // the server may still repeat "A"
    if (stops) await client.interrupt();
    answerPing(world);
    const said = world.socket.sent.filter(([name]) => name === "text" || name === "stop").map((one) => one.at(-1));
    assert.deepEqual(said, stops ? ["B", "C", "stop"] : ["A", "B", "C"]);
  }
});

test("a text that waits behind another survives a line that breaks again", async () => {
  const { world, client } = await begin();
  client.say("A");
  world.socket.drop();
  client.say("B");
  await world.clock.pass(4000);
  await world.greet(90, { resumed: true });
  await comeBack(world, { told: [["user_turn", 2, 1, "A"]] });
  answerPing(world);
  assert.deepEqual(world.socket.said("text"), [["text", "B"]]);
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
