import assert from "node:assert/strict";
import { test } from "node:test";

import { Connection } from "../connection.js";
import { say } from "../protocol.js";
import { FakeWorld, settle } from "./fakes.js";

const HELLO = { config: { speed: 1 }, key: "secret" };

function begin({ past, position = null, hello = () => HELLO } = {}) {
  const world = new FakeWorld();
  const told = { messages: [], ready: [], status: [], over: [], pongs: [] };
  const handlers = {
    message: (message) => told.messages.push(message),
    ready: (ready, how) => told.ready.push(how),
    status: (change) => told.status.push(change),
    over: (ending) => told.over.push(ending),
    position: async () => position,
    pong: (ms) => told.pongs.push(ms),
  };
  const connection = new Connection("ws://here/v1/voice", hello, handlers, world.environment);
  connection.start(past);
  return { world, told, connection };
}

/** Let time pass on a line that answers every ping. */
async function hold(world, ms = 6000) {
  for (let passed = 0; passed < ms; passed += 1000) {
    await world.clock.pass(1000);
    const [, mark] = world.socket.said("ping").at(-1);
    world.socket.tell("pong", 0, mark, 0);
  }
}

const names = (told) => told.messages.map(({ name }) => name);
const audio = (offset) => [1, offset, new Uint8Array(4), []];

test("hello, ready, open: the key goes in the hello, never in the handshake", async () => {
  const { world, told, connection } = begin();
  assert.deepEqual(world.socket.protocols, ["voxlane.v1"]);
  await world.greet();
  assert.deepEqual(world.socket.sent[0], ["hello", { config: { speed: 1 }, key: "secret" }]);
  assert.equal(connection.status, "open");
  assert.deepEqual(told.ready, ["first"]);
  assert.deepEqual(told.status.map(({ status }) => status), ["connecting", "greeting", "open"]);
  assert.equal(world.socket.binaryType, "arraybuffer");
});

test("a broken line is resumed: token, last number, the player's place; what comes twice is told once", async () => {
  const { world, told, connection } = begin({ position: [1, 2400] });
  await world.greet();
  world.socket.tell("reply", 2, 1, 1);
  world.socket.tell("audio", 3, ...audio(0));
  world.socket.tell("state", 4, "speaking");
  world.socket.drop(1006);
  assert.equal(connection.status, "waiting");
  await world.clock.pass(100);
  world.socket.open();
  await settle();
  const hello = { key: "secret", resume: "token-1", last_seq: 4, played: [1, 2400] };
  assert.deepEqual(world.socket.sent[0], ["hello", hello]);
  await world.greet(6, { resumed: true, token: "token-2", state: "speaking" });
  assert.deepEqual(told.ready, ["first", "resumed"]);
  told.messages.length = 0;
  world.socket.tell("audio", 3, ...audio(0)); // sound is repeated: the player skips what it has
  world.socket.tell("state", 4, "speaking"); // came before
  world.socket.tell("hold", 5, 1);
  world.socket.tell("release", 7, 1);
  assert.deepEqual(names(told), ["audio", "hold", "release"]);
  assert.equal(connection.lastSeq, 7);
  assert.equal(connection.missing, 0);
});

test("a line that breaks again while the past is told goes on from where that was", async () => {
  const { world, connection } = begin();
  await world.greet();
  world.socket.tell("state", 2, "hearing");
  world.socket.drop();
  await world.clock.pass(100);
  await world.greet(9, { resumed: true, token: "token-2" });
  world.socket.tell("state", 3, "thinking"); // and 4 to 8 never come
  world.socket.drop();
  await world.clock.pass(250);
  world.socket.open();
  await settle();
  assert.deepEqual(world.socket.sent[0][1], { key: "secret", resume: "token-2", last_seq: 3 });
  assert.equal(connection.missing, 0);
});

test("a gap on one connection is counted", async () => {
  const { world, connection } = begin();
  await world.greet();
  world.socket.tell("state", 2, "hearing");
  world.socket.tell("state", 5, "listening");
  assert.equal(connection.missing, 2);
});

test("waits grow, are shortened by chance, and end at once when the network is said to be back", async () => {
  const { world, told, connection } = begin();
  await world.greet();
  world.socket.drop();
  for (let attempt = 0; attempt < 7; attempt++) {
    await world.clock.pass(told.status.at(-1).delayMs);
    world.socket.drop();
  }
  const delays = told.status.filter(({ status }) => status === "waiting").map(({ delayMs }) => delayMs);
  assert.deepEqual(delays, [100, 250, 500, 1000, 2000, 4000, 4000, 4000]);
  world.chance = 0;
  await world.clock.pass(4000);
  world.socket.drop();
  assert.equal(told.status.at(-1).delayMs, 2000);
  const sockets = world.sockets.length;
  connection.poke();
  assert.equal(world.sockets.length, sockets + 1);
  await world.greet(2, { resumed: true });
  await hold(world);
  world.socket.drop();
  assert.equal(told.status.at(-1).delayMs, 50); // a line that has held resets the count of attempts
});

test("a line that breaks as soon as it is there is a failed attempt: waits grow, then it is given up", async () => {
  const { world, told } = begin();
  await world.greet();
  await hold(world);
  world.socket.drop();
  for (let seq = 2; seq < 500 && !told.over.length; seq++) {
    await world.clock.pass(told.status.at(-1).delayMs);
    await world.greet(seq, { resumed: true });
    const [, mark] = world.socket.said("ping").at(-1);
    world.socket.tell("pong", 0, mark, 0);
    world.socket.drop();
  }
  const delays = told.status.filter(({ status }) => status === "waiting").map(({ delayMs }) => delayMs);
  assert.deepEqual(delays.slice(0, 7), [100, 250, 500, 1000, 2000, 4000, 4000]);
  assert.equal(told.over[0].code, "gave_up");
  assert.ok(world.clock.time > 300_000 && world.clock.time < 310_000);
});

test("minutes are counted from the line that held last", async () => {
  const { world, told, connection } = begin();
  await world.greet();
  await hold(world, 6 * 60_000);
  world.socket.drop();
  assert.equal(connection.status, "waiting");
  assert.equal(told.status.at(-1).delayMs, 100);
});

test("an unknown token begins anew; a wrong key then is the end", async () => {
  const { world, told } = begin();
  await world.greet();
  world.socket.tell("state", 2, "hearing");
  world.socket.drop();
  await world.clock.pass(100);
  world.socket.open();
  await settle();
  world.socket.tell("error", 0, "invalid_api_key", "no", false, 0);
  world.socket.drop(4401);
  await world.clock.pass(250);
  await world.greet(1, { token: "other" });
  assert.deepEqual(world.socket.sent[0], ["hello", { config: { speed: 1 }, key: "secret" }]);
  assert.deepEqual(told.ready, ["first", "anew"]);
  world.socket.tell("state", 2, "hearing"); // numbers start again
  assert.equal(told.messages.at(-1).name, "state");
  world.socket.drop(1012);
  await world.clock.pass(500);
  world.socket.open();
  world.socket.tell("error", 0, "invalid_api_key", "A valid API key is needed", false, 0);
  world.socket.drop(4401);
  assert.deepEqual(told.over, [{ code: "invalid_api_key", message: "A valid API key is needed", closeCode: 4401 }]);
  assert.equal(world.clock.waiting, 0);
});

test("a server that hands the conversation over is followed at once, with the token", async () => {
  const { world, told } = begin();
  await world.greet();
  world.socket.tell("state", 2, "listening");
  world.socket.tell("go_away", 3, 0, "draining");
  world.socket.drop(1012);
  assert.deepEqual(told.status.at(-1), { status: "waiting", resuming: true, attempt: 1, delayMs: 0 });
  await world.clock.pass(0);
  world.socket.open();
  await settle();
  const [, hello] = world.socket.sent[0];
  assert.equal(hello.last_seq, 3);
  assert.ok(hello.resume);
  world.socket.tell("error", 0, "store_unavailable", "later", true, 1);
  world.socket.drop(1013); // it cannot be looked up now
  assert.equal(told.status.at(-1).resuming, true);
});

test("a server that restarts or is full is tried again when it says, without the token", async () => {
  const { world, told } = begin();
  await world.greet();
  world.socket.tell("error", 2, "draining", "later", true, 1);
  world.socket.drop(1012);
  assert.deepEqual(told.status.at(-1), { status: "waiting", resuming: false, attempt: 1, delayMs: 1500 });
  await world.clock.pass(1500);
  world.socket.drop(1006); // it is down
  await world.clock.pass(250);
  world.socket.open();
  world.socket.tell("error", 0, "full", "later", true, 1);
  world.socket.drop(1013);
  await world.clock.pass(1500);
  await world.greet();
  assert.deepEqual(told.ready, ["first", "anew"]);
});

test("a fault of the server's ends the conversation, a line that did not answer does not", async () => {
  const { world, told } = begin();
  await world.greet();
  world.socket.drop(1011);
  assert.equal(told.status.at(-1).resuming, true);
  await world.clock.pass(100);
  await world.greet(2, { resumed: true });
  world.socket.tell("error", 3, "internal_error", "sorry", false, 0);
  world.socket.drop(1011);
  assert.equal(told.status.at(-1).resuming, false);
});

test("closes that are final are not argued with", async () => {
  for (const code of [1007, 1009, 4400, 4401, 4408, 4409, 4429, 4440]) {
    const { world, told, connection } = begin();
    await world.greet();
    world.socket.drop(code);
    assert.equal(connection.status, "closed");
    assert.equal(told.over[0].closeCode, code);
    assert.equal(world.clock.waiting, 0);
    assert.equal(world.sockets.length, 1);
  }
});

test("a server that was never there is said to be unreachable at once", async () => {
  const { world, told } = begin();
  world.socket.drop(1006);
  assert.equal(told.over[0].code, "unreachable");
  assert.equal(world.clock.waiting, 0);
});

test("a stored conversation is tried for until the server says that it is gone", async () => {
  const { world, told } = begin({ past: { token: "stored", lastSeq: 17 } });
  world.socket.drop(1006);
  await world.clock.pass(100);
  world.socket.open();
  await settle();
  assert.deepEqual(world.socket.sent[0][1], { key: "secret", resume: "stored", last_seq: 17 });
  world.socket.drop(4401);
  await world.clock.pass(250);
  await world.greet();
  assert.deepEqual(told.ready, ["first"]);
});

test("it gives up after minutes", async () => {
  const { world, told } = begin();
  await world.greet();
  world.socket.drop();
  for (let tries = 0; tries < 200 && !told.over.length; tries++) {
    await world.clock.pass(told.status.at(-1).delayMs);
    world.socket.drop();
  }
  assert.equal(told.over[0].code, "gave_up");
  assert.ok(world.clock.time > 300_000 && world.clock.time < 310_000);
});

test("an attempt that hangs is given up", async () => {
  const { world, connection } = begin({ past: { token: "stored", lastSeq: 0 } });
  const [first] = world.sockets;
  await world.clock.pass(8000);
  assert.equal(connection.status, "waiting");
  assert.ok(first.closed && first.onclose === null);
});

test("the round trip is measured; a line that is silent though pinged is dead", async () => {
  const { world, told, connection } = begin();
  await world.greet();
  assert.deepEqual(world.socket.said("ping"), [["ping", 1]]);
  await world.clock.pass(40);
  world.socket.tell("pong", 2, 1, 0);
  assert.deepEqual(told.pongs, [40]);
  await world.clock.pass(3000);
  assert.equal(world.socket.said("ping").length, 2);
  await world.clock.pass(6000);
  assert.equal(connection.status, "open");
  await world.clock.pass(3000);
  assert.equal(connection.status, "waiting");
});

test("an unanswered ping is no matter while other things come", async () => {
  const { world, connection } = begin();
  await world.greet();
  for (let second = 0; second < 20; second++) {
    await world.clock.pass(1000);
    world.socket.tell("state", 2 + second, "hearing");
  }
  assert.equal(connection.status, "open");
});

test("sound is left out while the socket is behind, or broken; the server's count is believed", async () => {
  const { world, connection } = begin();
  await world.greet();
  world.socket.tell("pong", 2, 1, 0);
  for (let n = 0; n < 50; n++) assert.equal(connection.sendAudio(new Uint8Array(640), 0.02), true);
  world.socket.bufferedAmount = 40_000;
  assert.equal(connection.sendAudio(new Uint8Array(640), 0.02), false);
  world.socket.drop();
  assert.equal(connection.sendAudio(new Uint8Array(640), 0.02), false);
  assert.equal(connection.droppedFrames, 2);
  assert.ok(Math.abs(connection.sentSeconds - 1) < 1e-9);
  await world.clock.pass(100);
  await world.greet(3, { resumed: true });
  connection.sendAudio(new Uint8Array(640), 0.02);
  const [, mark] = world.socket.said("ping").at(-1);
  world.socket.tell("pong", 4, mark, 0.9); // a tenth of a second was on its way when the line broke
  assert.ok(Math.abs(connection.sentSeconds - 0.92) < 1e-9);
});

test("what is said while away is said on return; in another conversation only what still makes sense", async () => {
  for (const resumed of [true, false]) {
    const { world, connection } = begin();
    await world.greet();
    world.socket.drop(resumed ? 1006 : 1012);
    assert.equal(connection.send(say.stop()), true);
    assert.equal(connection.send(say.text("hello"), { survives: true }), true);
    assert.equal(connection.sendNow(say.played(1, 2, 3)), false);
    await world.clock.pass(100);
    await world.greet(2, { resumed });
    assert.equal(world.socket.said("stop").length, resumed ? 1 : 0);
    assert.deepEqual(world.socket.said("text"), [["text", "hello"]]);
    assert.equal(world.socket.said("played").length, 0);
  }
});

test("what waits is bounded, and nothing waits for a connection that is over", async () => {
  const { world, connection } = begin();
  await world.greet();
  world.socket.drop();
  const taken = Array.from({ length: 100 }, () => connection.send(say.stop()));
  assert.equal(taken.filter(Boolean).length, 64);
  connection.close();
  assert.equal(connection.status, "closed");
  assert.equal(connection.send(say.stop()), false);
});

test("a message that the server would not take is not sent", async () => {
  const { world, connection } = begin();
  await world.greet(1, { limits: { frame_bytes: 1000, resume_s: 30 } });
  assert.throws(() => connection.send(say.text("x".repeat(1000))), RangeError);
});

test("good-bye is said, answered and waited for, but not for ever", async () => {
  const polite = begin();
  await polite.world.greet();
  polite.connection.close();
  assert.deepEqual(polite.world.socket.sent.at(-1), ["bye"]);
  polite.world.socket.tell("bye", 2);
  polite.world.socket.drop(1000);
  assert.equal(polite.told.over.length, 1);
  assert.equal(polite.world.clock.waiting, 0);

  const silent = begin();
  await silent.world.greet();
  silent.connection.close();
  await silent.world.clock.pass(2000);
  assert.deepEqual(silent.told.over, [{ code: "closed", message: "", closeCode: 1000 }]);
  assert.equal(silent.world.clock.waiting, 0);
});

test("a server that speaks something else is left", async () => {
  const { world, told } = begin();
  world.socket.open();
  world.socket.onmessage({ data: "text" });
  assert.equal(told.over[0].code, "protocol");
  assert.ok(world.socket.closed);
});

test("an address that is none is said to be unreachable, and one can start again after an end", async () => {
  const { world, told, connection } = begin();
  world.socket.drop(1006);
  const { network } = world;
  world.network = () => {
    throw new SyntaxError("not an address");
  };
  connection.start();
  assert.deepEqual(told.over.map(({ code }) => code), ["unreachable", "unreachable"]);
  world.network = network;
  connection.start();
  await world.greet();
  assert.equal(connection.status, "open");
  assert.throws(() => connection.start());
});

test("a hello that cannot be made is an ending of its own", async () => {
  const failing = () => {
    throw new TypeError("no key");
  };
  for (const hello of [failing, async () => failing(), () => ({ config: { speed: () => 1 } })]) {
    const { world, told, connection } = begin({ hello });
    world.socket.open();
    await settle();
    assert.equal(told.over[0].code, "hello_failed");
    assert.equal(connection.status, "closed");
    assert.ok(world.socket.closed);
    assert.equal(world.clock.waiting, 0);
  }
});

test("a hello that fails after its line is lost is no matter", async () => {
  let fail;
  const hello = () => new Promise((_, reject) => (fail = reject));
  const { world, told } = begin({ hello, past: { token: "t", lastSeq: 0 } });
  world.socket.open();
  world.socket.drop();
  fail(new Error("late"));
  await settle();
  assert.deepEqual(told.over, []);
});

test("a client that resumes names its server to the balancer; one that has handed over is not named again", async () => {
  const { world, connection } = begin();
  assert.equal(world.socket.url, "ws://here/v1/voice");
  await world.greet(1, { at: "cell 7" });
  world.socket.drop(1006);
  await world.clock.pass(100);
  assert.equal(world.socket.url, "ws://here/v1/voice?at=cell%207");
  await world.greet(2, { at: "b", resumed: true });
  assert.equal(connection.at, "b");
  world.socket.tell("go_away", 3, 0, "draining");
  world.socket.drop(1012);
  await world.clock.pass(0);
  assert.equal(world.socket.url, "ws://here/v1/voice?at=");
});

test("a stored conversation is looked for at its server", () => {
  const { world } = begin({ past: { token: "stored", lastSeq: 0, at: "a" } });
  assert.equal(world.socket.url, "ws://here/v1/voice?at=a");
});
