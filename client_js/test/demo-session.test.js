import assert from "node:assert/strict";
import { test } from "node:test";

import { explain, Notices, waiting } from "../demo/notices.js";
import { probe } from "../demo/session.js";
import { FakeStorage, FakeWorld, settle } from "./fakes.js";
import { begun, page } from "./page.js";

test("every notice is one sentence or two, and a button has words", () => {
  const codes = ["insecure_origin", "microphone_refused", "invalid_api_key", "full", "reconnecting", "engine_lost"];
  for (const code of codes) {
    const notice = explain(code, "not this");
    assert.equal(notice.code, code);
    assert.match(notice.text, /\.$/);
    assert.equal(notice.action === "none", notice.label === "");
  }
  assert.match(explain("brand_new", "The moon is full.").text, /^The moon is full\. /);
  assert.equal(waiting(explain("reconnecting"), 300).text, explain("reconnecting").text);
  assert.equal(waiting(explain("full"), 5200).text, explain("full").text);
  assert.match(waiting(explain("full"), 5200).aside, /in 5 s\.$/);
});

test("what matters most is shown, passing notices pass", async () => {
  const world = new FakeWorld();
  const shown = [];
  const notices = new Notices((notice) => shown.push(notice?.code ?? ""), world.environment);
  notices.tell("connection", explain("resumed"), 2000);
  assert.equal(shown.at(-1), "resumed");
  notices.tell("microphone", explain("microphone_refused"));
  assert.equal(shown.at(-1), "microphone_refused", "a trouble is more than good news");
  notices.tell("server", explain("engine_lost"), 500);
  assert.equal(shown.at(-1), "engine_lost");
  await world.clock.pass(600);
  assert.equal(shown.at(-1), "microphone_refused");
  notices.clear("microphone", "microphone_busy");
  assert.equal(shown.at(-1), "microphone_refused");
  notices.dismiss();
  assert.equal(shown.at(-1), "resumed");
  await world.clock.pass(1500);
  assert.equal(notices.current, null);
  notices.tell("sound", explain("silenced"));
  notices.clearAll();
  assert.equal(world.clock.waiting, 0);
});

test("a click opens the loudspeaker, the connection and the microphone that was chosen, in this order", async () => {
  const { audio, client, session, code } = await begun();
  assert.equal(audio.rate, 48000);
  assert.equal(client.listening, true);
  assert.deepEqual(audio.asked, [{ deviceId: "chosen", echoCancellation: false }]);
  assert.equal(session.begun, true);
  assert.equal(session.starting, false);
  assert.equal(code(), "");
  assert.equal(await session.begin(), false);
});

test("a server that is away takes the sound's files with it: only the one is told", async () => {
  const { world, audio, session, notices, code } = page();
  audio.silent = "sound_failed";
  const beginning = session.begin();
  await settle();
  world.socket.drop();
  assert.equal(await beginning, false);
  assert.equal(code(), "unreachable");
  notices.dismiss();
  assert.equal(code(), "");
});

test("a refused microphone is explained, typing goes on, and the button asks again", async () => {
  const all = page();
  all.audio.refusal = "microphone_refused";
  const beginning = all.session.begin();
  await settle();
  await all.world.greet();
  assert.equal(await beginning, true);
  assert.equal(all.code(), "microphone_refused");
  assert.equal(all.notices.current.action, "microphone");
  assert.equal(await all.session.write("Hello"), true);
  assert.deepEqual(all.world.socket.said("text"), [["text", "Hello"]]);
  all.audio.refusal = "";
  assert.equal(await all.session.openMicrophone(), true);
  assert.equal(all.code(), "");
});

test("a page without sound can still be written to, and asks for no microphone", async () => {
  const all = page();
  all.audio.silent = "insecure_origin";
  const writing = all.session.write("Hello");
  await settle();
  await all.world.greet();
  assert.equal(await writing, true);
  assert.equal(all.code(), "insecure_origin");
  assert.deepEqual(all.audio.asked, []);
  assert.deepEqual(all.world.socket.said("text"), [["text", "Hello"]]);
});

test("writing first begins a conversation without the microphone", async () => {
  const all = page();
  const writing = all.session.write("Hello");
  await settle();
  await all.world.greet();
  assert.equal(await writing, true);
  assert.equal(all.client.listening, false);
  assert.equal(await all.session.write("x".repeat(20_000)), false);
  assert.equal(all.code(), "too_long");
});

test("a wrong key is said, nothing stays open, and the right one works", async () => {
  const all = page();
  const beginning = all.session.begin();
  await settle();
  all.world.socket.open();
  await settle();
  all.world.socket.tell("error", 0, "invalid_api_key", "A valid API key is needed.", false, 0);
  all.world.socket.drop(4401);
  assert.equal(await beginning, false);
  assert.equal(all.code(), "invalid_api_key");
  assert.equal(all.notices.current.action, "key");
  assert.equal(all.session.begun, false);
  assert.equal(all.audio.rate, 0);
  const again = all.session.begin();
  await settle();
  await all.world.greet();
  assert.equal(await again, true);
  assert.equal(all.code(), "");
});

test("a key that the server does not know is called wrong", async () => {
  const all = page({ keyed: true });
  const beginning = all.session.begin();
  await settle();
  all.world.socket.open();
  await settle();
  all.world.socket.tell("error", 0, "invalid_api_key", "A valid API key is needed.", false, 0);
  all.world.socket.drop(4401);
  assert.equal(await beginning, false);
  assert.equal(all.code(), "wrong_key");
  assert.match(all.notices.current.text, /does not know this key/);
  assert.equal(all.notices.current.action, "key");
});

test("a server that lets nobody in is asked why, and the button tries again", async () => {
  for (const reason of ["unreachable", "turned_away", "draining", "engine_not_ready"]) {
    const all = page({ reason });
    const beginning = all.session.begin();
    await settle();
    all.world.socket.drop(1006);
    assert.equal(await beginning, false);
    await settle();
    assert.equal(all.code(), reason);
    assert.equal(all.notices.current.action, "retry");
  }
});

test("its health says why", async () => {
  const says = (status) => async () => ({ json: async () => ({ status }) });
  assert.equal(await probe(says("draining")), "draining");
  assert.equal(await probe(says("ready")), "turned_away", "full or forbidden: nobody can tell");
  assert.equal(await probe(says("starting")), "engine_not_ready");
  const fails = (error) => async () => {
    throw error;
  };
  assert.equal(await probe(fails(new TypeError("Failed to fetch"))), "unreachable");
  assert.equal(await probe(fails(new SyntaxError("not JSON"))), "unreachable");
  await assert.rejects(probe(fails(new RangeError("ours"))), RangeError);
});

test("a server that still loads is waited for, and the page says so", async () => {
  const all = page();
  const beginning = all.session.begin();
  await settle();
  all.world.socket.open();
  await settle();
  all.world.socket.tell("error", 0, "engine_not_ready", "The engine is not ready yet.", true, 1);
  all.world.socket.drop(1013);
  assert.equal(all.code(), "engine_not_ready");
  await all.world.clock.pass(2000);
  await all.world.greet();
  assert.equal(await beginning, true);
  assert.equal(all.code(), "");
});

test("a broken line is said, and so is that it is whole again", async () => {
  const all = await begun();
  all.world.socket.drop(1006);
  assert.equal(all.code(), "reconnecting");
  await all.world.clock.pass(150);
  await all.world.greet(2, { resumed: true, token: "token-2" });
  assert.equal(all.code(), "resumed");
  await all.world.clock.pass(6500);
  assert.equal(all.code(), "");
  assert.deepEqual(all.dividers, []);
});

test("a conversation that the server forgot is begun anew, under a line", async () => {
  const all = await begun();
  all.world.socket.drop(1012);
  await all.world.clock.pass(150);
  await all.world.greet();
  assert.equal(all.code(), "gone");
  assert.equal(all.dividers.length, 1);
});

test("a page that was loaded anew goes on, or says that it cannot", async () => {
  for (const resumed of [true, false]) {
    const storage = new FakeStorage();
    const past = { url: "ws://here/v1/voice", token: "token-1", lastSeq: 3 };
    storage.setItem("voxlane.resume", JSON.stringify(past));
    const all = page({ storage });
    const beginning = all.session.begin({ returning: true });
    await settle();
    await all.world.greet(4, { resumed, token: "token-2" });
    assert.equal(await beginning, true);
    assert.equal(all.world.socket.said("hello")[0][1].resume, "token-1");
    assert.equal(all.code(), resumed ? "resumed" : "gone");
  }
});

test("a sound that the browser keeps back asks for a click, and goes with it", async () => {
  const all = page();
  all.audio.silenced = true;
  const beginning = all.session.begin();
  await settle();
  await all.world.greet();
  await beginning;
  await all.world.clock.pass(1000);
  assert.equal(all.code(), "silenced");
  all.audio.silenced = false;
  all.audio.handlers.figures({ bufferMs: 0, targetMs: 0, underruns: 0, starvedMs: 0, level: 0 });
  assert.equal(all.code(), "");
});

test("a sound that falls asleep in a conversation asks for a click, unless it wakes by itself", async () => {
  const all = await begun();
  for (const wakes of [true, false]) {
    all.audio.silenced = true;
    all.audio.handlers.silenced(true);
    assert.equal(all.code(), "");
    all.audio.silenced = !wakes;
    await all.world.clock.pass(1000);
    assert.equal(all.code(), wakes ? "" : "silenced");
  }
});

test("a lost microphone is replaced by another one where there is one", async () => {
  const all = await begun();
  all.audio.listening = false;
  all.audio.handlers.microphoneLost();
  await settle();
  assert.equal(all.audio.asked.at(-1).deviceId, undefined);
  assert.equal(all.code(), "microphone_changed");
  all.audio.refusal = "microphone_missing";
  all.audio.handlers.microphoneLost();
  await settle();
  assert.equal(all.code(), "microphone_lost");
});

test("the engine's loss is passing news; a farewell is said before it comes", async () => {
  const all = await begun();
  all.world.socket.tell("error", 2, "engine_lost", "The engine was lost.", true, 1);
  assert.equal(all.code(), "engine_lost");
  all.world.socket.tell("reply", 3, 1, 1);
  assert.equal(all.code(), "");
  all.world.socket.tell("go_away", 4, 60, "session_limit");
  assert.equal(all.code(), "session_ends");
  all.world.socket.tell("error", 5, "session_limit", "It has reached its time limit.", false, 0);
  all.world.socket.drop(4440);
  assert.equal(all.code(), "session_limit");
  assert.equal(all.audio.listening, false);
});

test("a person who is hard to hear is asked to speak up, for a while", async () => {
  const all = await begun();
  all.world.socket.tell("hard_to_hear", 2);
  assert.equal(all.code(), "hard_to_hear");
  assert.match(all.notices.current.text, /speak up/);
  all.client.mute(true);
  assert.equal(all.code(), "");
  all.world.socket.tell("hard_to_hear", 3); // for what was said before
  assert.equal(all.code(), "", "a muted person is not asked to speak up");
  all.client.mute(false);
  all.world.socket.tell("hard_to_hear", 4);
  assert.equal(all.code(), "hard_to_hear");
});

test("ending lets everything go; another conversation stands under a line", async () => {
  const all = await begun();
  const ending = all.session.end();
  all.world.socket.tell("bye", 2);
  all.world.socket.drop(1000);
  await ending;
  assert.equal(all.client.status, "closed");
  assert.equal(all.audio.rate, 0);
  assert.equal(all.code(), "");
  const again = all.session.begin();
  await settle();
  await all.world.greet();
  await again;
  assert.deepEqual(all.dividers, ["A new conversation"]);
});

/** A question that waits for its answer. */
function question() {
  let answer;
  const asked = new Promise((resolve) => (answer = resolve));
  return Object.assign(asked, { answer });
}

test("ending while the browser asks for the microphone ends it, and another beginning is not disturbed", async () => {
  const all = page();
  const beginning = all.session.begin();
  await settle();
  const first = (all.audio.prompt = question());
  await all.world.greet();
  assert.equal(all.session.asking, true);
  const ending = all.session.end();
  assert.deepEqual([all.session.asking, all.session.starting], [false, false]);
  all.world.socket.tell("bye", 2);
  all.world.socket.drop(1000);
  await ending;
  assert.equal(all.session.busy, false);

  all.audio.prompt = null;
  const again = all.session.begin();
  await settle();
  all.audio.prompt = question();
  await all.world.greet();
  assert.equal(all.session.asking, true);
  all.audio.refusal = "microphone_refused";
  first.answer();
  await settle();
  assert.equal(await beginning, false);
  assert.equal(all.session.asking, true, "the first answer is not the second's");
  assert.equal(all.code(), "");
  all.audio.refusal = "";
  all.audio.prompt.answer();
  assert.equal(await again, true);
});

test("ending before there is sound connects nobody and says nothing", async () => {
  for (const silent of ["", "sound_failed"]) {
    const all = page();
    const opening = (all.audio.opening = question());
    const beginning = all.session.begin();
    await settle();
    await all.session.end();
    assert.equal(all.session.busy, false);
    all.audio.silent = silent;
    opening.answer();
    assert.equal(await beginning, false);
    assert.equal(all.world.sockets.length, 0);
    assert.equal(all.code(), "");
  }
});

test("a microphone that is exchanged is not off meanwhile", async () => {
  const all = await begun();
  const prompt = (all.audio.prompt = question());
  const exchange = all.session.openMicrophone();
  await settle();
  all.audio.listening = false; // the old one closes before the new one is there
  assert.deepEqual([all.session.listening, all.session.asking], [true, false]);
  all.audio.refusal = "microphone_busy";
  prompt.answer();
  assert.equal(await exchange, false);
  assert.equal(all.session.listening, false);
});

test("a tool's result that was said twice is no trouble of the person's", async () => {
  const { world, code } = await begun();
  world.socket.tell("error", 2, "unknown_call", "there is no open tool call with this id", false, 0);
  assert.equal(code(), "");
  world.socket.tell("error", 3, "engine_lost", "the engine is restarting; please repeat", true, 0);
  assert.equal(code(), "engine_lost");
});
