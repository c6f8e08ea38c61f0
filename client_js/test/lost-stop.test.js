/** An interruption lost with a dead line: it is silent here at once and stays so, and no later reply is cut. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { answerPing, begin, comeBack, silence, SOUND, speaking } from "./client.js";

const SPEAKS = { values: { state: "speaking" } };

test("a stop that was lost is said again once it is clear that nobody has heeded it", async () => {
  const { world, client } = await speaking();
  await client.interrupt();
  await comeBack(world, SPEAKS);
  assert.deepEqual(world.socket.said("stop"), []); // the server may still repeat it
  await comeBack(world, SPEAKS);
  world.socket.tell(...SOUND);
  world.socket.tell("audio", 91, 4, 2400, new Uint8Array(4800), []);
  answerPing(world);
  assert.deepEqual(world.socket.said("stop"), [["stop"]]);
  world.socket.tell("interrupted", 92, 4, "", 0);
  await comeBack(world);
  answerPing(world);
  assert.deepEqual(world.socket.said("stop"), []);
});

test("a stop that was lost holds for a reply that began behind it, loudspeaker or not", async () => {
  for (const { before, listens } of [
    { before: [["reply", 2, 4, 1], ["reply_done", 5, 4, "x"]], listens: true },
    { before: [], listens: true }, // the first reply of all
    { before: [], listens: false },
  ]) {
    const { world, client, audio } = await begin();
    if (listens) await client.listen();
    answerPing(world);
    for (const message of before) world.socket.tell(...message);
    world.socket.tell("user_turn", 6, 2, "Why?");
    world.socket.tell("state", 7, "thinking");
    await client.interrupt();
    await comeBack(world, { ...SPEAKS, told: [["reply", 8, 5, 2], ["audio", 9, 5, 0, new Uint8Array(4800), []]] });
    const orders = audio.orders.map((order) => order.do);
    if (listens) assert.ok(orders.lastIndexOf("interrupt") > orders.lastIndexOf("restart")); // silent here at once
    if (listens) assert.equal(audio.orders.findLast((order) => order.do === "interrupt").epoch, 5);
    answerPing(world);
    assert.deepEqual(world.socket.said("stop"), [["stop"]]);
  }
});

test("a stop that has done its work cuts no later reply", async () => {
  const later = [["user_turn", 10, 2, "And now?"], ["reply", 11, 5, 2]];
  for (const heeded of [
    ({ world }) => world.socket.tell("speech_started", 5, 2, 1.5),
    ({ world }) => world.socket.tell("speech_stopped", 5, 2, 1.5), // which began before it
    async ({ world }) => {
      answerPing(world); // of the ping before the stop
      await world.clock.pass(3000);
      answerPing(world); // of a ping after it
    },
  ]) {
    const all = await speaking();
    await all.client.interrupt();
    await heeded(all);
    for (const message of later) all.world.socket.tell(...message);
    await comeBack(all.world);
    all.audio.orders.length = 0;
    all.world.socket.tell(...SOUND); // its tail was never acknowledged
    all.world.socket.tell("audio", 92, 5, 0, new Uint8Array(4800), []);
    answerPing(all.world);
    assert.deepEqual(all.world.socket.said("stop"), []);
    assert.deepEqual(all.audio.orders.filter((order) => order.do === "interrupt"), []);
  }
});

test("a stop that was said on coming back, and lost with that line too, is said again", async () => {
  const { world, client } = await speaking();
  world.socket.drop();
  await client.interrupt();
  await world.clock.pass(4000);
  await world.greet(9, { resumed: true, state: "speaking" });
  assert.deepEqual(world.socket.said("stop"), [["stop"]]);
  await comeBack(world, SPEAKS);
  answerPing(world);
  assert.deepEqual(world.socket.said("stop"), [["stop"]]);
});

test("a stop takes back the text before it that may be lost; the answer, if it did arrive, is silenced", async () => {
  for (const arrived of [false, true]) {
    const { world, client } = await speaking();
    client.say("A");
    await client.interrupt();
    const answer = [["interrupted", 5, 4, "", 0], ["user_turn", 6, 2, "A"], ["reply", 7, 5, 2]];
    await comeBack(world, { ...SPEAKS, told: arrived ? answer : [] });
    answerPing(world);
    assert.deepEqual(world.socket.said("text"), []);
    assert.deepEqual(world.socket.said("stop"), [["stop"]]);
  }
});

test("what is typed behind an interruption is not silenced by it", async () => {
  const { world, client } = await speaking();
  const interrupting = client.interrupt();
  client.say("B");
  await interrupting;
  assert.deepEqual(world.socket.sent.slice(-1), [["text", "B"]]);
});

test("a reply that is asked for right behind an interruption comes behind the stop, which is said once", async () => {
  const { world, client } = await speaking();
  const interrupting = [client.interrupt(), client.interrupt()];
  client.respond();
  await Promise.all(interrupting);
  const said = world.socket.sent.map(([name]) => name).filter((name) => name === "stop" || name === "respond");
  assert.deepEqual(said, ["stop", "respond"]);
});

test("an interruption without a conversation silences none that is taken up", async () => {
  const { world, client, audio } = await begin({}, { connected: false });
  await client.listen();
  await client.interrupt();
  const connecting = client.connect();
  await world.greet(9, { resumed: true });
  await connecting;
  world.socket.tell("reply", 10, 1, 1);
  assert.deepEqual(audio.orders.filter((order) => order.do === "interrupt"), []);
});

test("a stop is not said again where the server knows, or is told while away, or is silenced otherwise", async () => {
  const known = await speaking();
  await known.client.interrupt();
  known.world.socket.tell("interrupted", 4, 4, "", 0);
  await comeBack(known.world);
  answerPing(known.world);
  assert.deepEqual(known.world.socket.said("stop"), []);

  const away = await speaking();
  away.world.socket.drop();
  await away.client.interrupt();
  await away.world.clock.pass(4000);
  await away.world.greet(9, { resumed: true });
  away.world.socket.tell(...SOUND);
  answerPing(away.world);
  assert.deepEqual(away.world.socket.said("stop"), [["stop"]]);

  for (const act of [(client) => client.say("Hello"), (client) => client.press()]) {
    const { world, client } = await speaking();
    await client.interrupt();
    world.socket.drop();
    act(client);
    await world.clock.pass(4000);
    await world.greet(9, { resumed: true });
    world.socket.tell(...SOUND);
    answerPing(world);
    assert.deepEqual(world.socket.said("stop"), []); // it would silence the answer
  }
});

test("speech from before an interruption does not show that this arrived", async () => {
  const { world, client, audio } = await begin();
  await client.talk();
  for (let frames = 0; frames < 50; frames++) audio.handlers.frame(silence());
  await client.interrupt(); // a second is sent by now
  const told = [["speech_started", 2, 1, 0.5], ["user_turn", 3, 1, "Why?"], ["reply", 4, 1, 1]];
  await comeBack(world, { ...SPEAKS, told });
  answerPing(world);
  assert.deepEqual(world.socket.said("stop"), [["stop"]]);
});

test("a reply that a text has interrupted does not show that a stop behind that text arrived", async () => {
  const told = [
    ["user_turn", 2, 1, "A"], ["reply", 3, 1, 1], ["interrupted", 4, 1, "", 0], ["user_turn", 5, 2, "B"],
    ["reply", 6, 2, 2],
  ];
  for (const times of [1, 2]) {
    const { world, client, audio } = await begin();
    await client.listen();
    client.say("A");
    client.say("B");
    for (let time = 0; time < times; time++) await client.interrupt();
    await comeBack(world, { ...SPEAKS, told });
    assert.equal(audio.orders.findLast((order) => order.do === "interrupt").epoch, 2);
    answerPing(world);
    assert.deepEqual(world.socket.said("stop"), [["stop"]]);
  }
});

test("a stop that may be lost silences no reply of a server that is seen to be quiet", async () => {
  const { world, client, audio } = await speaking();
  client.say("A");
  await client.interrupt();
  await comeBack(world, { told: [["interrupted", 5, 4, "", 0], ["user_turn", 6, 2, "A"]] });
  answerPing(world);
  assert.deepEqual(world.socket.said("stop"), []);
  audio.orders.length = 0;
  world.socket.tell("reply", 91, 5, 3);
  assert.deepEqual(audio.orders.filter((order) => order.do === "interrupt"), []);
});

test("on a line that holds, a reply behind an interruption sounds: the server knows what it does", async () => {
  const { world, client, audio } = await begin();
  await client.listen();
  await client.interrupt();
  world.socket.tell("reply", 2, 1, 1);
  assert.deepEqual(audio.orders.filter((order) => order.do === "interrupt"), []);
});
