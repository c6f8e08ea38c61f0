import assert from "node:assert/strict";
import { test } from "node:test";

import { VoiceError } from "../index.js";
import { begin, silence } from "./client.js";
import { FakeStorage, settle } from "./fakes.js";
import { readyMap } from "./support.js";

test("connecting says what is wanted, and gives what the server says", async () => {
  const { world, client, of } = await begin({ config: { speed: 1.5 }, key: "k" });
  assert.deepEqual(world.socket.sent[0], ["hello", {
    input: { codec: "pcm16", rate: 16000 }, output: { codec: "pcm16", rate: 24000 }, config: { speed: 1.5 }, key: "k",
  }]);
  assert.equal(client.ready.session, "voice-1");
  assert.equal(client.status, "open");
  assert.equal(of("ready")[0].how, "first");
});

test("a key may be asked for when it is needed", async () => {
  let key = "";
  const { world, client } = await begin({ key: () => key }, { connected: false });
  const connecting = client.connect();
  await world.greet();
  await connecting;
  assert.equal("key" in world.socket.said("hello")[0][1], false);
  const closing = client.close();
  world.socket.drop(1000);
  await closing;
  key = "right";
  const again = client.connect();
  await world.greet();
  await again;
  assert.equal(world.socket.said("hello")[0][1].key, "right");
});

test("a connection that fails is an error with a code", async () => {
  const { world, client } = await begin({}, { connected: false });
  const failing = client.connect();
  world.socket.drop(1006);
  await assert.rejects(failing, (error) => error instanceof VoiceError && error.code === "unreachable");
  const again = client.connect();
  await world.greet();
  assert.equal((await again).session, "voice-1");
});

test("the microphone's frames go out, muted or not", async () => {
  const { world, audio, client, of } = await begin();
  await client.talk();
  audio.handlers.frame(silence());
  assert.equal(world.socket.said("audio").length, 1);
  client.mute(true);
  assert.equal(audio.muted.at(-1), true);
  assert.deepEqual(of("microphone").at(-1), { muted: true, listening: true, pushToTalk: false, pressed: false });
  assert.deepEqual(of("level").at(-1), { input: 0.1, output: 0 });
});

test("a recorder gets both sides' sound, until it is taken away", async () => {
  const { audio, client } = await begin();
  await client.talk();
  const pieces = [];
  client.record((piece) => pieces.push(piece));
  assert.equal(audio.recorded, true);
  audio.handlers.frame(silence());
  audio.handlers.played(new Float32Array(960), 48000);
  assert.deepEqual(
    pieces.map(({ role, samples, rate }) => [role, samples.length, rate]),
    [["user", 320, 16000], ["assistant", 960, 48000]],
  );
  client.record(null);
  assert.equal(audio.recorded, false);
  audio.handlers.frame(silence());
  assert.equal(pieces.length, 2);
});

test("a reply's sound goes to the loudspeaker, and what it plays is acked in the wire's samples", async () => {
  const { world, audio, client } = await begin();
  await client.listen();
  audio.orders.length = 0;
  world.socket.tell("reply", 2, 1, 1);
  world.socket.tell("reply_text", 3, 1, "Hello you");
  world.socket.tell("audio", 4, 1, 0, new Uint8Array(4800), [[0, 5, 0, 1000], [6, 9, 1000, 2400]]);
  world.socket.tell("audio_done", 5, 1, 2400);
  const [push, finish] = audio.orders;
  assert.equal(push.do, "push");
  assert.equal(finish.do, "finish");
  assert.equal(finish.offset, push.samples.length);
  assert.equal(push.samples.length + finish.samples.length, 4800);
  audio.handlers.acks([{ epoch: 1, samples: 2400, queued: 2400 }]);
  assert.deepEqual(world.socket.said("played"), [["played", 1, 1200, 1200]]);
  assert.equal(client.state.lines[0].heard, "Hello");
  audio.handlers.acks([{ epoch: 1, samples: 4800, queued: 0 }]);
  assert.deepEqual(world.socket.said("played")[1], ["played", 1, 2400, 0]);
  world.socket.tell("duck", 6, 1, 0.178);
  world.socket.tell("hold", 7, 1);
  world.socket.tell("release", 8, 1);
  world.socket.tell("interrupted", 9, 1, "Hello", 1200);
  const orders = ["hold", "release", "interrupt"].map((what) => ({ do: what, epoch: 1 }));
  assert.deepEqual(audio.orders.slice(2), [{ do: "lower", epoch: 1, gain: 0.178 }, ...orders]);
});

test("without a loudspeaker nothing is acked: the server goes by its clock", async () => {
  const { world, audio } = await begin();
  world.socket.tell("audio", 2, 1, 0, new Uint8Array(4800), []);
  assert.deepEqual(audio.orders.filter((order) => order.do === "push"), []);
  assert.equal(world.socket.said("played").length, 0);
});

test("interrupting is silent here first; the server learns what was played before it is told to stop", async () => {
  const { world, audio, client } = await begin();
  await client.listen();
  world.socket.tell("reply", 2, 3, 1);
  audio.position = async () => {
    audio.handlers.acks([{ epoch: 3, samples: 480, queued: 0 }]); // as the worklet does on an interruption
    return null;
  };
  await client.interrupt();
  assert.deepEqual(audio.orders.at(-1), { do: "interrupt", epoch: 3 });
  assert.deepEqual(world.socket.sent.slice(-2), [["played", 3, 240, 0], ["stop"]]);
});

test("push-to-talk: silence unless pressed, and the end comes behind the last frame", async () => {
  const { world, audio, client } = await begin();
  await client.talk();
  client.setPushToTalk(true);
  assert.deepEqual(world.socket.said("config"), [["config", { turns: { mode: "manual" } }]]);
  assert.equal(audio.muted.at(-1), true);
  client.press();
  client.press();
  assert.equal(audio.muted.at(-1), false);
  audio.handlers.frame(silence());
  client.release();
  assert.equal(world.socket.said("end").length, 0);
  assert.equal(audio.muted.at(-1), false);
  audio.handlers.frame(silence());
  assert.equal(audio.muted.at(-1), true);
  const names = world.socket.sent.map(([name]) => name).slice(-4);
  assert.deepEqual(names, ["start", "audio", "audio", "end"]);
  client.press();
  client.release();
  client.press(); // before its last frame came
  assert.deepEqual(world.socket.sent.map(([name]) => name).slice(-3), ["start", "end", "start"]);
});

test("a button let go without a microphone, or while away, ends its turn all the same", async () => {
  const { world, client } = await begin();
  client.press();
  client.release();
  assert.deepEqual(world.socket.sent.slice(-2), [["start"], ["end"]]);
  client.press();
  world.socket.drop();
  client.release();
  await world.clock.pass(100);
  await world.greet(2, { resumed: true });
  assert.equal(world.socket.said("end").length, 1);
});

test("typing, configuring, asking", async () => {
  const { world, client } = await begin();
  client.say("hello");
  client.configure({ voice: "x" });
  client.respond();
  assert.deepEqual(world.socket.sent.slice(-3), [["text", "hello"], ["config", { voice: "x" }], ["respond"]]);
  assert.throws(() => client.say("x".repeat(16001)), { code: "too_long" });
  world.socket.tell("configured", 2, { voice: "x", speed: 1 });
  assert.deepEqual(client.ready.config, { voice: "x", speed: 1 });
});

test("settings made on the way survive into a conversation begun anew", async () => {
  const { world, client, audio, of } = await begin({ config: { turns: { idle_s: 3 } } });
  await client.listen();
  client.configure({ turns: { mode: "manual" } });
  world.socket.drop(1012);
  await world.clock.pass(100);
  await world.greet();
  assert.deepEqual(world.socket.sent[0][1].config, { turns: { idle_s: 3, mode: "manual" } });
  assert.equal(of("ready").at(-1).how, "anew");
  assert.deepEqual(audio.orders.at(-1), { do: "reset" });
});

test("a broken line: the player's place is told, and the player is told to expect the rest again", async () => {
  const { world, client, audio } = await begin();
  await client.listen();
  world.socket.tell("reply", 2, 1, 1);
  world.socket.tell("audio", 3, 1, 0, new Uint8Array(9600), []);
  audio.standing = { epoch: 1, samples: 4800 };
  world.socket.drop();
  await world.clock.pass(100);
  world.socket.open();
  await settle();
  assert.deepEqual(world.socket.sent[0][1].played, [1, 2400]);
  await world.greet(5, { resumed: true, state: "held" });
  assert.deepEqual(audio.orders.at(-1), { do: "restart", held: true });
  world.socket.tell("audio", 3, 1, 0, new Uint8Array(9600), []);
  assert.equal(audio.orders.at(-1).offset, 0);
});

test("tools run and answer; what they throw is their answer", async () => {
  const tools = {
    add: { description: "adds", parameters: { type: "object" }, run: ({ a, b }) => a + b },
    fails: { description: "fails", parameters: {}, run: async () => { throw new Error("no luck"); } },
    long: { description: "is long", parameters: {}, run: () => "x".repeat(40000) },
    nothing: { description: "returns nothing", parameters: {}, run: () => undefined },
    page: { description: "is the page's", parameters: {} },
  };
  const { world, of } = await begin({ tools });
  const [first] = world.socket.sent[0][1].config.tools;
  assert.deepEqual(first, { name: "add", description: "adds", parameters: '{"type":"object"}' });
  const results = () => Object.fromEntries(world.socket.said("tool_result").map(([, id, output]) => [id, output]));
  const args = ['{"a":1,"b":2}', "{}", "{}", "{}", "{}", "{}", "{broken"];
  ["add", "fails", "long", "nothing", "page", "toString", "add"].forEach((name, place) => {
    world.socket.tell("tool_call", 2 + place, 1, `c${place}`, name, args[place]);
  });
  await settle();
  assert.equal(results().c0, "3");
  assert.equal(results().c1, '{"error":"no luck"}');
  assert.equal(results().c2, '{"error":"the output is too long"}');
  assert.equal(results().c3, "null");
  assert.ok(results().c6.startsWith('{"error":'));
  assert.deepEqual(of("toolcall").map(({ name }) => name), ["page", "toString"]);
  of("toolcall")[0].answer({ ok: true });
  assert.equal(results().c4, '{"ok":true}');
  assert.deepEqual(of("fault").map(({ code }) => code), ["tool_failed", "tool_failed"]);
});

test("a reloaded page takes its conversation up; one that has ended is forgotten", async () => {
  const kept = new FakeStorage();
  const first = await begin({ storage: kept });
  first.world.socket.tell("user_turn", 2, 1, "Hello");
  const second = await begin({ storage: kept }, { connected: false });
  const connecting = second.client.connect();
  second.world.socket.open();
  await settle();
  assert.deepEqual(second.world.socket.sent[0][1], { resume: "token-1", last_seq: 2 });
  const history = [{ role: "user", content: "Hello" }];
  second.world.socket.tell("ready", 9, readyMap({ resumed: true, token: "token-2", history }));
  await connecting;
  assert.equal(second.client.state.lines[0].heard, "Hello");
  assert.equal(JSON.parse(kept.values.get("voxlane.resume")).token, "token-2");
  second.world.socket.drop(4440);
  assert.equal(kept.values.size, 0);
  assert.equal(second.of("over")[0].code, "session_limit");
});

test("a voice that begins ducks the assistant, unless the page does not want it", async () => {
  for (const ducking of [true, false]) {
    const { audio, client } = await begin({ ducking });
    await client.talk();
    audio.handlers.frame({ ...silence(), onset: true });
    assert.equal(audio.orders.some((order) => order.do === "duck"), ducking);
  }
});

test("figures, faults and a microphone that goes away", async () => {
  const { world, audio, client, of } = await begin();
  await client.talk();
  world.socket.tell("pong", 2, 1, 0);
  const buffer = { bufferMs: 100, targetMs: 40, underruns: 0, starvedMs: 0 };
  audio.handlers.figures({ ...buffer, level: 0.2, playing: true, held: false });
  assert.deepEqual(of("figures")[0], {
    roundTripMs: 0, bufferMs: 100, targetMs: 40, underruns: 0, starvedMs: 0, droppedMs: 0, outputLatencyMs: 12,
  });
  world.socket.tell("error", 3, "engine_lost", "the engine is restarting", true, 1);
  audio.listening = false;
  audio.handlers.microphoneLost();
  assert.deepEqual(of("fault").map(({ code }) => code), ["engine_lost", "microphone_lost"]);
  assert.equal(of("microphone").at(-1).listening, false);
});

test("one connection at a time; acks of a conversation that is over are for nobody", async () => {
  const { world, audio, client } = await begin();
  await client.listen();
  await assert.rejects(client.connect(), { code: "connected_already" });
  audio.handlers.acks([{ epoch: 7, samples: 480, queued: 0 }]);
  assert.equal(world.socket.said("played").length, 0);
});

test("a microphone that is closed, another loudspeaker, other tools", async () => {
  const { world, client, of } = await begin();
  await client.talk();
  client.hush();
  assert.equal(client.listening, false);
  assert.equal(of("microphone").at(-1).listening, false);
  assert.equal(await client.useSpeaker("x"), true);
  client.setTools({ add: { description: "adds", parameters: {} } });
  assert.equal(world.socket.said("config")[0][1].tools[0].name, "add");
});

test("closing says good-bye and lets the devices go", async () => {
  const { world, audio, client, of } = await begin();
  await client.talk();
  const closing = client.close();
  assert.deepEqual(world.socket.sent.at(-1), ["bye"]);
  assert.equal(audio.listening, false);
  world.socket.drop(1000);
  await closing;
  assert.equal(of("over")[0].code, "closed");
  assert.throws(() => client.say("too late"), { code: "not_connected" });
  await client.interrupt(); // harmless
});
