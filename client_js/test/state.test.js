import assert from "node:assert/strict";
import { test } from "node:test";

import { parseMessage } from "../protocol.js";
import { merge, Memory } from "../settings.js";
import { ConversationState } from "../state.js";
import { FakeStorage } from "./fakes.js";
import { readData, readyMap, unhex } from "./support.js";

function begin(values = {}) {
  const state = new ConversationState();
  state.begin(readyMap(values), "first");
  let seq = 1;
  const take = (name, fields = {}) => state.take({ name, seq: ++seq, ...fields });
  const reply = (epoch, text, turn = epoch) => {
    take("reply", { epoch, turn });
    take("reply_text", { epoch, text });
  };
  const show = () => state.lines.map(({ role, status, heard, unheard }) => `${role} ${status}: ${heard}|${unheard}`);
  return { state, take, reply, show, sequence: () => seq };
}

const audio = (epoch, offset, words) => ({ epoch, offset, data: new Uint8Array(0), words });

test("the person's words settle, and what may change is apart", () => {
  const { take, show } = begin();
  take("speech_started", { turn: 1, at_s: 0.3 });
  take("user_words", { turn: 1, settled: "", tail: "What is the" });
  assert.deepEqual(show(), ["user live: |What is the"]);
  take("user_words", { turn: 1, settled: "What is the", tail: " capital of" });
  take("user_words", { turn: 1, settled: " capital", tail: " of France?" });
  assert.deepEqual(show(), ["user live: What is the capital| of France?"]);
  take("user_turn", { turn: 1, text: "What is the capital of France?" });
  assert.deepEqual(show(), ["user done: What is the capital of France?|"]);
});

test("a sound without words leaves no line", () => {
  const { take, show } = begin();
  take("speech_started", { turn: 1, at_s: 0.3 });
  take("turn_done", { turn: 1, how: "done" });
  take("speech_started", { turn: 2, at_s: 3 });
  take("user_turn", { turn: 2, text: "" });
  assert.deepEqual(show(), []);
});

test("a word is heard with half of its sound", () => {
  const { state, take, reply, show } = begin();
  reply(1, "One two three.");
  take("audio", audio(1, 0, [[0, 3, 100, 200], [4, 7, 300, 400]]));
  take("audio", audio(1, 480, [[8, 14, 500, 700]]));
  state.played(1, 149);
  assert.deepEqual(show(), ["assistant live: |One two three."]);
  state.played(1, 150);
  assert.deepEqual(show(), ["assistant live: One| two three."]);
  state.played(1, 480);
  assert.deepEqual(show(), ["assistant live: One two| three."]);
  state.played(1, 200); // positions never make anything unheard
  assert.deepEqual(show(), ["assistant live: One two| three."]);
  take("reply_done", { epoch: 1, text: "One two three." });
  assert.deepEqual(show(), ["assistant done: One two three.|"]);
});

test("characters are counted as the server counts them", () => {
  const { state, take, reply, show } = begin();
  reply(1, "🎉🎉 yes");
  take("audio", audio(1, 0, [[0, 2, 0, 100], [3, 6, 100, 200]]));
  state.played(1, 60);
  assert.deepEqual(show(), ["assistant live: 🎉🎉| yes"]);
});

test("one written word of several spoken ones is heard with half of them all", () => {
  const { state, take, reply, show } = begin();
  reply(1, "It is $4.50 now.");
  take("audio", audio(1, 0, [[0, 2, 0, 10], [3, 5, 10, 20], [6, 11, 20, 40], [6, 11, 40, 120], [12, 16, 120, 200]]));
  state.played(1, 60);
  assert.deepEqual(show(), ["assistant live: It is| $4.50 now."]);
  state.played(1, 70);
  assert.deepEqual(show(), ["assistant live: It is $4.50| now."]);
});

test("sound that is told again moves no word", () => {
  const { state, take, reply, show } = begin();
  reply(1, "One two three.");
  const pieces = [audio(1, 0, [[0, 3, 0, 100]]), audio(1, 480, [[4, 7, 480, 600]])];
  for (const piece of [...pieces, pieces[0]]) take("audio", piece);
  take("audio", audio(1, 960, [[8, 14, 960, 1000]]));
  state.played(1, 550);
  assert.deepEqual(show(), ["assistant live: One two| three."]);
});

test("an interruption: the server's word on what was heard is the last; the rest stays grey", () => {
  const { state, take, reply, show } = begin();
  reply(1, "One two three.");
  take("audio", audio(1, 0, [[0, 3, 0, 100], [4, 7, 100, 200]]));
  state.played(1, 200);
  take("speech_started", { turn: 2, at_s: 5 });
  take("hold", { epoch: 1 });
  take("interrupted", { epoch: 1, heard: "One", samples: 100 });
  take("turn_done", { turn: 1, how: "interrupted" });
  state.played(1, 400); // a late ack
  assert.deepEqual(show(), ["assistant interrupted: One| two three.", "user live: |"]);
  assert.equal(state.transcript().split("\n")[0], "assistant: One [two three.]");
});

test("a turn that fails says so, and an empty reply leaves no line", () => {
  const { take, reply, show } = begin();
  take("user_turn", { turn: 1, text: "Hello?" });
  reply(1, "Well");
  take("turn_done", { turn: 1, how: "failed" });
  take("reply", { epoch: 2, turn: 2 });
  take("interrupted", { epoch: 2, heard: "", samples: 0 });
  assert.deepEqual(show(), ["user done: Hello?|", "assistant failed: |Well"]);
});

test("the latency of a turn: the server's figures, and when it was heard here", () => {
  const { state, take, reply } = begin();
  state.captured(1, 5000); // the first second of sound was captured by 5000: it began at 4000
  state.captured(1.02, 5030);
  take("speech_started", { turn: 1, at_s: 0.5 });
  take("speech_stopped", { turn: 1, at_s: 1.5 });
  take("user_turn", { turn: 1, text: "Hello" });
  reply(1, "Hi");
  state.sounded(1, 6300);
  state.sounded(1, 7000);
  const words = { turn_end_ms: 410, words_ms: 563.1, first_token_ms: 539 };
  const figures = { turn: 1, ...words, first_sample_ms: 700, first_frame_ms: 710 };
  take("latency", figures);
  assert.deepEqual(state.turns, [{ ...figures, heard_ms: 800 }]);
});

test("the latency of a typed turn counts from the key", () => {
  const { state, take, reply } = begin();
  state.typed(100);
  take("user_turn", { turn: 1, text: "Hello" });
  reply(1, "Hi");
  state.sounded(1, 650);
  assert.equal(state.turns[0].heard_ms, 550);
  assert.equal(state.turns[0].turn_end_ms, -1);
});

test("a page without a microphone measures no latency of speech", () => {
  const { state, take, reply } = begin();
  take("speech_stopped", { turn: 1, at_s: 3 });
  reply(1, "Hi");
  state.sounded(1, 5400);
  state.sounded(7, 5400);
  assert.deepEqual(state.turns, []);
});

test("sound that was dropped moves the microphone's time; a burst does not", () => {
  const { state, take, reply } = begin();
  state.captured(1, 1000);
  state.captured(2, 2100); // late by 100 ms
  state.captured(3, 5000); // two seconds are missing
  take("speech_stopped", { turn: 1, at_s: 3 });
  reply(1, "Hi");
  state.sounded(1, 5400);
  assert.equal(state.turns[0].heard_ms, 400);
});

test("a microphone whose clock is slow, or that a little sound was lost of, does not seem ever later", () => {
  const hour = 3600;
  const drifting = begin();
  for (let second = 0; second <= hour; second += 0.5) drifting.state.captured(second, second * 1000 * (1 + 5e-5));
  const dropped = begin();
  for (let second = 0; second <= 60; second += 0.5) {
    dropped.state.captured(second, second * 1000 + (second > 10 ? 200 : 0) + (second % 2 ? 30 : 0));
  }
  for (const [{ state, take, reply }, last, offset] of [[drifting, hour, hour * 0.05], [dropped, 60, 200]]) {
    take("speech_stopped", { turn: 1, at_s: last });
    reply(1, "Hi");
    state.sounded(1, last * 1000 + offset + 400);
    assert.ok(Math.abs(state.turns[0].heard_ms - 400) < 5, `${state.turns[0].heard_ms}`);
  }
});

test("a page that was reloaded begins with the history, and goes on where that ends", () => {
  const first = begin();
  first.take("user_turn", { turn: 1, text: "Hello" });
  assert.equal(first.state.checkpoint, first.sequence());
  const known = first.state.checkpoint;
  first.reply(1, "Hi there");
  assert.equal(first.state.checkpoint, known); // the reply is not in the history yet
  first.take("reply_done", { epoch: 1, text: "Hi there" });
  assert.equal(first.state.checkpoint, first.sequence());

  const again = new ConversationState();
  const history = [{ role: "user", content: "Hello" }, { role: "tool", content: "x" }];
  again.begin(readyMap({ history, state: "speaking" }), "resumed", 1);
  again.take({ name: "ready", seq: 9, ready: readyMap() }); // repeated messages have their old numbers
  assert.equal(again.checkpoint, 1);
  again.take({ name: "user_turn", seq: 2, turn: 1, text: "Hello" });
  again.take({ name: "reply", seq: 3, epoch: 1, turn: 1 });
  again.take({ name: "reply_text", seq: 4, epoch: 1, text: "Hi there" });
  assert.equal(again.state, "speaking");
  const lines = again.lines.map(({ role, heard, unheard }) => [role, heard, unheard]);
  assert.deepEqual(lines, [["user", "Hello", ""], ["assistant", "", "Hi there"]]);
});

test("sound of a reply that is over makes no line; that of one whose beginning is unknown does", () => {
  const { take, reply, show } = begin();
  reply(1, "One");
  take("reply_done", { epoch: 1, text: "One" });
  take("audio", audio(1, 480, []));
  take("reply_text", { epoch: 3, text: "and so on" });
  assert.deepEqual(show(), ["assistant done: One|", "assistant live: |and so on"]);
});

test("a resumed conversation keeps its lines; one begun anew ends those that lived", () => {
  const { state, reply, show, take } = begin();
  reply(1, "One two");
  state.begin(readyMap({ resumed: true, state: "held" }), "resumed");
  assert.equal(state.state, "held");
  assert.deepEqual(show(), ["assistant live: |One two"]);
  take("reply", { epoch: 2, turn: 2 }); // without a word: nothing is left of it
  state.begin(readyMap(), "anew");
  reply(1, "Other");
  take("reply_done", { epoch: 1, text: "Other" });
  assert.deepEqual(show(), ["assistant failed: |One two", "assistant done: Other|"]);
  assert.equal(new Set(state.lines.map(({ id }) => id)).size, 2);
});

test("an ending cuts what is under way, and leaves no empty line", () => {
  const { state, take, reply, show } = begin();
  reply(1, "One two");
  take("audio", audio(1, 0, [[0, 3, 0, 100]]));
  state.played(1, 100);
  take("reply", { epoch: 2, turn: 2 });
  take("user_words", { turn: 3, settled: "Wait", tail: " a" });
  take("speech_started", { turn: 4, at_s: 9 });
  state.end();
  assert.deepEqual(show(), ["assistant interrupted: One| two", "user done: Wait| a"]);
  state.played(1, 900);
  assert.equal(state.lines[0].heard, "One");
});

test("the recorded exchange, as captions", () => {
  const state = new ConversationState();
  for (const hex of readData("exchange.json").server) {
    const message = parseMessage(unhex(hex));
    if (message.name === "ready") state.begin(message.ready, "first");
    else state.take(message);
    // All sound is played at once, except of the reply that is interrupted: of that, one piece.
    if (message.name === "audio" && (message.epoch !== 5 || message.offset === 0)) {
      state.played(message.epoch, message.offset + message.data.length / 2);
    }
  }
  assert.deepEqual(state.transcript().split("\n"), [
    "user: grüße 🎉 you", "assistant: grüße 🎉 you", "user: call", "assistant: sunny", "user: and you",
    "assistant: and you", "user: interrupted before it ends", "assistant: [interrupted before it ends]",
    "user: and on", "assistant: interrupted before it ends and on", "user: fail",
  ]);
  assert.equal(state.state, "listening");
  assert.deepEqual(state.turns.map(({ turn }) => turn), [1, 2, 3, 4, 5, 6]);
});

test("no page grows for ever", () => {
  const { state, take } = begin();
  for (let turn = 1; turn <= 1200; turn++) {
    take("user_turn", { turn, text: `${turn}` });
    take("latency", { turn, turn_end_ms: 1 });
  }
  assert.equal(state.lines.length, 1000);
  assert.equal(state.turns.length, 200);
  assert.equal(state.lines.at(-1).heard, "1200");
});

test("settings merge by key, nested maps too", () => {
  const below = { speed: 1, turns: { mode: "auto", idle_s: 3 }, tools: [1] };
  const above = { turns: { mode: "manual" }, tools: [], seed: null, voice: undefined };
  assert.deepEqual(merge(below, above), { speed: 1, turns: { mode: "manual", idle_s: 3 }, tools: [], seed: null });
  assert.equal(below.turns.mode, "auto");
});

test("what is stored is only used for the server it is of", () => {
  const storage = new FakeStorage();
  const { values } = storage;
  const memory = new Memory(storage, "ws://a");
  assert.equal(memory.read(), undefined);
  memory.write({ token: "t", lastSeq: 4 });
  assert.deepEqual(memory.read(), { token: "t", lastSeq: 4 });
  assert.equal(new Memory(storage, "ws://b").read(), undefined);
  values.set("voxlane.resume", "{broken");
  assert.equal(memory.read(), undefined);
  memory.forget();
  assert.equal(values.size, 0);
  assert.equal(new Memory(undefined, "ws://a").read(), undefined);
});
