/** What must stay consistent over breaks and endings: the talk button, the mute, the settings, the devices. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { begin, silence } from "./client.js";
import { FakeStorage, settle } from "./fakes.js";
import { readyMap } from "./support.js";

const MANUAL = { turns: { mode: "manual" } };
const AUTO = { turns: { mode: "auto" } };

/** Break the line and resume the conversation. */
async function comeBack(world, values) {
  world.socket.drop();
  await world.clock.pass(4000);
  await world.greet(9, { resumed: true, ...values });
}

/** End a conversation with an error, and begin another. */
async function refuseAndReturn({ world, client }) {
  world.socket.tell("error", 9, "invalid_message", "not so", false, 0);
  world.socket.drop(4400);
  const again = client.connect();
  await world.greet();
  await again;
  return world.socket.sent[0][1].config;
}

test("a page that was reloaded in push-to-talk is still in it", async () => {
  const storage = new FakeStorage();
  const first = await begin({ storage });
  first.client.setPushToTalk(true);
  first.world.socket.tell("configured", 2, MANUAL);
  const second = await begin({ storage }, { connected: false });
  const connecting = second.client.connect();
  await second.world.greet(9, { resumed: true, config: MANUAL });
  await connecting;
  assert.equal(second.client.pushToTalk, true);
  assert.equal(second.of("microphone").at(-1).pushToTalk, true);
  await second.client.talk();
  assert.equal(second.audio.muted.at(-1), true);
});

test("push-to-talk is what the server has, unless it was asked for something else since", async () => {
  const { world, client } = await begin();
  client.configure({ speed: 2 });
  client.setPushToTalk(true);
  world.socket.tell("configured", 2, { speed: 2, ...AUTO });
  assert.equal(client.pushToTalk, true);
  world.socket.tell("configured", 3, { speed: 2, ...MANUAL });
  await comeBack(world, { config: MANUAL });
  assert.equal(client.pushToTalk, true);
  await comeBack(world, { config: AUTO }); // it was changed from elsewhere
  assert.equal(client.pushToTalk, false);
  client.configure(MANUAL);
  world.socket.tell("configured", 10, MANUAL);
  assert.equal(client.pushToTalk, true);
});

test("a setting that was lost with the line, or made while it was away, is asked for again", async () => {
  const { world, client } = await begin();
  client.configure({ speed: 2 });
  world.socket.drop();
  client.setPushToTalk(true);
  await world.clock.pass(100);
  await world.greet(9, { resumed: true, config: AUTO });
  assert.deepEqual(world.socket.said("config"), [["config", { speed: 2, ...MANUAL }]]);
  assert.equal(client.pushToTalk, true);
  world.socket.tell("configured", 10, { speed: 2, ...MANUAL });
  await comeBack(world, { config: MANUAL });
  assert.deepEqual(world.socket.said("config"), []);
});

test("a setting made while the hello is under way follows it", async () => {
  const { world, client } = await begin({}, { connected: false });
  const connecting = client.connect();
  world.socket.open();
  await settle();
  client.configure({ speed: 2 });
  world.socket.tell("ready", 1, readyMap());
  await connecting;
  assert.deepEqual(world.socket.said("config"), [["config", { speed: 2 }]]);
});

test("a setting that the server refuses is not asked for again; those that it took are", async () => {
  const all = await begin({ config: { voice: "a" } });
  all.world.socket.tell("configured", 2, {}); // an answer without a request
  all.client.configure({ speed: 2 });
  all.world.socket.tell("configured", 3, { voice: "a", speed: 2 });
  all.client.configure({ temperature: "hot" });
  assert.deepEqual(await refuseAndReturn(all), { voice: "a", speed: 2 });
  all.client.configure({ language: "en" });
  all.world.socket.tell("configured", 2, {});
  all.world.socket.drop(1012);
  await all.world.clock.pass(4000);
  await all.world.greet();
  assert.deepEqual(all.world.socket.sent[0][1].config, { voice: "a", speed: 2, language: "en" });
});

test("a setting refused in a hello is forgotten, one that cannot be said is never kept", async () => {
  const all = await begin({}, { connected: false });
  all.client.configure({ temperature: "hot" });
  assert.throws(() => all.client.configure({ speed: () => 1 }));
  assert.throws(() => all.client.configure({ instructions: "x".repeat(70_000) }), { code: "too_long" });
  const refused = all.client.connect();
  all.world.socket.open();
  await settle();
  assert.deepEqual(all.world.socket.sent[0][1].config, { temperature: "hot" });
  const rejected = assert.rejects(refused, { code: "invalid_message" });
  assert.deepEqual(await refuseAndReturn(all), {});
  await rejected;
});

test("pressing the button talks though muted; the mute comes back behind the last frame", async () => {
  for (const pushToTalk of [true, false]) {
    const { audio, client, of } = await begin();
    await client.talk();
    client.setPushToTalk(pushToTalk);
    client.mute(true);
    client.press();
    assert.equal(audio.muted.at(-1), false);
    assert.deepEqual(of("microphone").at(-1), { muted: false, listening: true, pushToTalk, pressed: true });
    client.release();
    assert.equal(audio.muted.at(-1), false);
    audio.handlers.frame(silence());
    assert.equal(audio.muted.at(-1), true);
    assert.deepEqual(of("microphone").at(-1), { muted: true, listening: true, pushToTalk, pressed: false });
  }
});

test("who mutes or unmutes while the button is pressed is obeyed, then and after", async () => {
  for (const muted of [true, false]) {
    const { audio, client } = await begin();
    await client.talk();
    client.mute(true);
    client.press();
    client.mute(muted);
    assert.equal(audio.muted.at(-1), muted);
    client.release();
    audio.handlers.frame(silence());
    assert.equal(client.muted, muted);
  }
});

test("a conversation that ends closes the microphone, and brings a lifted mute back", async () => {
  const { world, audio, client, of } = await begin();
  await client.talk();
  client.mute(true);
  client.press();
  world.socket.drop(4440);
  assert.equal(audio.listening, false);
  const microphone = { muted: true, listening: false, pushToTalk: false, pressed: false };
  assert.deepEqual(of("microphone").at(-1), microphone);
  assert.equal(audio.rate, 48000); // the loudspeaker stays
});

test("who has closed can connect again at once", async () => {
  const { world, audio, client, of } = await begin();
  await client.talk();
  let closed = false;
  const closing = client.close().then(() => (closed = true));
  await settle();
  assert.equal(audio.listening, false); // not only when the server has answered
  assert.equal(closed, false);
  world.socket.drop(1000);
  await closing;
  assert.equal(of("over").length, 1);
  const again = client.connect();
  await world.greet();
  await again;
  const [one, other] = [client.close(), client.close()];
  await world.clock.pass(2000); // no answer comes
  await Promise.all([one, other]);
  await client.close(); // there is nothing to wait for
  assert.equal(of("over").length, 2);
});

test("a tool's output that is no JSON is answered for by an error", async () => {
  const circle = {};
  circle.self = circle;
  const tool = (run) => ({ description: "", parameters: {}, run });
  const { world, of } = await begin({ tools: { circle: tool(() => circle), big: tool(async () => 1n) } });
  world.socket.tell("tool_call", 2, 1, "c1", "circle", "{}");
  world.socket.tell("tool_call", 3, 1, "c2", "big", "{}");
  await settle();
  const results = world.socket.said("tool_result");
  assert.deepEqual(results.map(([, id]) => id), ["c1", "c2"]);
  for (const [, , output] of results) assert.ok(JSON.parse(output).error);
  assert.deepEqual(of("fault").map(({ code }) => code), ["tool_failed", "tool_failed"]);
});

test("a loudspeaker that is opened in a hold waits for its release", async () => {
  const restart = { do: "restart", held: true };
  const reloaded = await begin({}, { connected: false });
  await reloaded.client.listen();
  const connecting = reloaded.client.connect();
  await reloaded.world.greet(9, { resumed: true, state: "held" });
  await connecting;
  assert.deepEqual(reloaded.audio.orders.at(-1), restart);

  for (const end of [null, "release", "interrupted"]) {
    const late = await begin();
    late.world.socket.tell("hold", 2, 1);
    if (end) late.world.socket.tell(end, 3, 1, ...(end === "release" ? [] : ["", 0]));
    await late.client.listen();
    assert.deepEqual(late.audio.orders.filter((order) => order.do === "restart"), end ? [] : [restart]);
  }
});

test("a browser without URL.canParse connects all the same", async (context) => {
  const { canParse } = URL;
  delete URL.canParse;
  context.after(() => (URL.canParse = canParse));
  const { client, world } = await begin({ url: "ws://localhost:8000/v1/voice" });
  assert.equal(client.status, "open");
  assert.deepEqual(world.socket.sent[0][1].input, { codec: "pcm16", rate: 16000 });
  await begin({ url: "no address" }); // the socket reports it
});

test("a key that cannot be got is an error of its own", async () => {
  const key = () => {
    throw new Error("no key today");
  };
  const { client, world } = await begin({ key }, { connected: false });
  const failing = assert.rejects(client.connect(), { code: "hello_failed", message: /no key today/ });
  world.socket.open();
  await failing;
});

test("a microphone that is wanted no more when the loudspeaker is open is not opened", async () => {
  for (const leave of [(client) => client.hush(), (client) => client.close()]) {
    const { audio, client } = await begin({}, { connected: false });
    let open;
    const opening = new Promise((resolve) => (open = resolve));
    audio.openSpeaker = () => opening;
    const talking = assert.rejects(client.talk(), { code: "microphone_closed" });
    await leave(client);
    open();
    await talking;
    assert.equal(audio.listening, false);
  }
});

test("a storage that is full costs the reload its conversation, and nothing else", async () => {
  const storage = new FakeStorage();
  storage.setItem = () => {
    throw new DOMException("full", "QuotaExceededError");
  };
  const { client, of } = await begin({ storage });
  assert.equal(client.status, "open");
  assert.equal(of("ready").length, 1);
});
