import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { BrowserAudio } from "../audio.js";
import { browserEnvironment } from "../environment.js";
import { VoiceError } from "../errors.js";
import { settle } from "./fakes.js";

// A browser's audio, as far as it is used: which nodes are connected, and which are released.
const made = { contexts: [], nodes: [], tracks: [], constraints: [], urls: [] };

class Port {
  onmessage = null;
  posted = [];
  postMessage(data) {
    this.posted.push(data);
    if (data.do === "position" && !Port.deaf) this.onmessage({ data: { position: { epoch: 2, samples: 7 } } });
  }
}

class Context {
  sampleRate = 44100;
  state = "running";
  destination = { name: "destination" };
  modules = [];
  outputLatency = 0.02;
  baseLatency = 0.005;
  audioWorklet = {
    addModule: async (url) => {
      const { lacks } = Context;
      await Context.loading;
      if (url.pathname.endsWith(lacks)) throw new DOMException("cannot be loaded", "AbortError");
      made.urls.push(url.href);
      this.modules.push(url.pathname.split("/").at(-1));
    },
  };
  constructor(options) {
    Object.assign(this, { options });
    if (options.sampleRate) this.sampleRate = options.sampleRate;
    made.contexts.push(this);
  }
  createMediaStreamSource() {
    if (Context.strict && this === made.contexts[0]) throw new DOMException("another rate", "NotSupportedError");
    return { context: this, connect: (node) => (node.source = this), disconnect: () => {} };
  }
  async resume() {
    this.resumed = (this.resumed ?? 0) + 1;
    if (this.state === "closed" || this.state === "interrupted") throw new DOMException("not now", "InvalidStateError");
  }
  /** The browser's side. */
  become(state) {
    this.state = state;
    this.onstatechange?.();
  }
  async close() {
    this.state = "closed";
  }
}

class Node {
  port = new Port();
  constructor(context, name, options) {
    Object.assign(this, { context, name, options });
    made.nodes.push(this);
  }
  connect(target) {
    this.target = target;
  }
  disconnect() {
    this.target = null;
  }
}

function browser({ secure = true, refuses = "", worklets = true, devices = true } = {}) {
  for (const list of Object.values(made)) list.length = 0;
  Context.strict = Port.deaf = false;
  Context.settings = { sampleRate: 48000 };
  Context.lacks = "nothing";
  Context.loading = null;
  globalThis.isSecureContext = secure;
  globalThis.AudioContext = Context;
  if (worklets) globalThis.AudioWorkletNode = Node;
  const getUserMedia = async (constraints) => {
    made.constraints.push(constraints.audio);
    if (refuses) throw new DOMException("no", refuses);
    const getSettings = () => Context.settings;
    const track = { onended: null, stopped: false, stop: () => (track.stopped = true), getSettings };
    made.tracks.push(track);
    return { getAudioTracks: () => [track], getTracks: () => [track] };
  };
  const navigator = devices ? { mediaDevices: { getUserMedia } } : {};
  Object.defineProperty(globalThis, "navigator", { value: navigator, configurable: true });
  const told = [];
  const names = ["frame", "acks", "begins", "figures", "microphoneLost", "silenced"];
  const handlers = Object.fromEntries(names.map((name) => [name, (detail) => told.push([name, detail])]));
  return { audio: new BrowserAudio(handlers, 16000), told };
}

afterEach(() => {
  delete globalThis.AudioWorkletNode;
});

test("the loudspeaker plays at the card's own rate, and what it says is passed on", async () => {
  const { audio, told } = browser();
  assert.equal(audio.rate, 0);
  await Promise.all([audio.openSpeaker(), audio.openSpeaker()]);
  assert.equal(made.contexts.length, 1);
  assert.equal(audio.silenced, false);
  assert.deepEqual(made.contexts[0].modules, ["playback-worklet.js"]);
  assert.equal(audio.rate, 44100);
  assert.equal(audio.outputLatencyMs, 25);
  const [{ port }] = made.nodes;
  for (const data of [{ acks: [1] }, { begins: 3 }, { figures: { level: 0 } }]) port.onmessage({ data });
  assert.deepEqual(told, [["acks", [1]], ["begins", 3], ["figures", { level: 0 }]]);
  audio.order({ do: "hold", epoch: 1 });
  assert.deepEqual(port.posted, [{ do: "hold", epoch: 1 }]);
  assert.deepEqual(await audio.position(), { epoch: 2, samples: 7 });
  assert.equal(await audio.useSpeaker("x"), false);
  made.contexts[0].setSinkId = async (id) => (made.contexts[0].sink = id);
  const { resumed } = made.contexts[0];
  assert.equal(await audio.useSpeaker("x"), true);
  assert.deepEqual([made.contexts[0].sink, made.contexts[0].resumed], ["x", resumed + 1]);
  await audio.close();
  assert.equal(port.onmessage, null);
  assert.equal(made.contexts[0].state, "closed");
  assert.equal(await audio.position(), null);
});

test("the worklets may lie elsewhere", async () => {
  browser();
  const audio = new BrowserAudio({}, 16000, "https://here/files/");
  await audio.openSpeaker();
  assert.equal(made.urls.at(-1), "https://here/files/playback-worklet.js");
});

test("the microphone is opened, muted, changed for another, and let go", async () => {
  const { audio, told } = browser();
  await audio.openSpeaker();
  audio.mute(true);
  await audio.openMicrophone();
  const capture = made.nodes[1];
  assert.deepEqual(capture.options.processorOptions, { rate: 16000, frameSamples: 320 });
  assert.deepEqual(capture.port.posted, [{ muted: true }]);
  assert.equal(made.constraints[0].echoCancellation, true);
  audio.useRate(16000);
  assert.equal(capture.port.posted.length, 1);
  audio.useRate(48000);
  assert.deepEqual(capture.port.posted.at(-1), { rate: 48000, frameSamples: 960, muted: true });
  capture.port.onmessage({ data: "a frame" });
  assert.deepEqual(told, [["frame", "a frame"]]);
  await audio.openMicrophone({ deviceId: "other", echoCancellation: false });
  assert.deepEqual(made.nodes[2].options.processorOptions, { rate: 48000, frameSamples: 960 });
  assert.deepEqual(made.constraints[1].deviceId, { exact: "other" });
  assert.equal(made.constraints[1].echoCancellation, false);
  assert.equal(made.tracks[0].stopped, true);
  assert.deepEqual(capture.port.posted.at(-1), { over: true });
  assert.equal(audio.listening, true);
  made.tracks[1].onended();
  assert.deepEqual(told.at(-1)[0], "microphoneLost");
  assert.equal(audio.listening, false);
});

test("a microphone that nobody wants any more is let go as soon as it is there", async () => {
  const { audio } = browser();
  await audio.openSpeaker();
  const refused = assert.rejects(audio.openMicrophone(), { code: "microphone_closed" });
  audio.closeMicrophone();
  await refused;
  assert.equal(made.tracks[0].stopped, true);
  assert.equal(audio.listening, false);
  const overtaken = assert.rejects(audio.openMicrophone({ deviceId: "first" }), { code: "microphone_closed" });
  await audio.openMicrophone({ deviceId: "second" });
  await overtaken;
  assert.deepEqual(made.tracks.map(({ stopped }) => stopped), [true, true, false]);
  assert.equal(audio.listening, true);
});

test("a microphone of another rate gets a context of its own", async () => {
  const { audio } = browser();
  Context.strict = true;
  await audio.openSpeaker();
  await audio.openMicrophone();
  assert.equal(made.nodes[1].context.sampleRate, 48000);
  audio.closeMicrophone();
  assert.equal(made.contexts[1].state, "closed");
  assert.equal(made.contexts[0].state, "running");
});

test("a browser that does not tell the microphone's rate has it in a context that is made then", async () => {
  const { audio } = browser();
  Context.strict = true;
  Context.settings = {}; // as in Firefox, which needs it
  await audio.openSpeaker();
  await audio.openMicrophone();
  assert.equal(audio.listening, true);
  assert.equal(made.nodes[1].context, made.contexts[1]);
});

test("a microphone's own context is woken too, for as long as it is open", async () => {
  const { audio } = browser();
  Context.strict = true;
  await audio.openSpeaker();
  await audio.openMicrophone();
  const context = made.contexts[1];
  context.become("suspended");
  assert.equal(context.resumed, 1);
  await audio.openSpeaker(); // a click
  assert.equal(context.resumed, 2);
  audio.closeMicrophone();
  context.become("suspended");
  assert.equal(context.resumed, 2);
});

test("sound that falls asleep is woken, and the page is told of both", async () => {
  const { audio, told } = browser();
  await audio.openSpeaker();
  const [context] = made.contexts;
  assert.equal(context.resumed, 1);
  context.become("interrupted"); // a telephone call: resuming would fail
  assert.equal(context.resumed, 1);
  context.become("suspended"); // it is over
  assert.equal(context.resumed, 2);
  context.become("running");
  assert.deepEqual(told, [["silenced", true], ["silenced", true], ["silenced", false]]);
  context.become("interrupted");
  await audio.openSpeaker(); // a click all the same
  await settle();
  await audio.close();
  context.become("closed");
  assert.equal(told.length, 4);
});

test("a loudspeaker that is closed while it opens is not open, and does not displace the next one", async () => {
  const { audio } = browser();
  let load;
  Context.loading = new Promise((resolve) => (load = resolve));
  const first = assert.rejects(audio.openSpeaker(), { code: "sound_closed" });
  await audio.close();
  const second = audio.openSpeaker();
  load();
  await Promise.all([first, second]);
  assert.equal(made.contexts.length, 2);
  assert.deepEqual(made.nodes.map(({ context }) => made.contexts.indexOf(context)), [1]);
  assert.equal(audio.rate, 44100);
  await audio.openSpeaker();
  assert.equal(made.nodes.length, 1);
});

test("a microphone whose worklet fails is let go, and so said", async () => {
  const { audio } = browser();
  await audio.openSpeaker();
  Context.lacks = "capture-worklet.js";
  await assert.rejects(audio.openMicrophone(), (error) => {
    return error instanceof VoiceError && error.code === "sound_failed" && error.cause.name === "AbortError";
  });
  assert.equal(audio.listening, false);
  assert.equal(made.tracks[0].stopped, true);
  assert.equal(made.tracks[0].onended, null);
});

test("a worklet that fails for a microphone that was changed since does not close the new one", async () => {
  const { audio } = browser();
  await audio.openSpeaker();
  let load;
  Context.lacks = "capture-worklet.js";
  Context.loading = new Promise((resolve) => (load = resolve));
  const overtaken = assert.rejects(audio.openMicrophone({ deviceId: "first" }), { code: "microphone_closed" });
  await settle();
  Context.lacks = "nothing";
  Context.loading = null;
  await audio.openMicrophone({ deviceId: "second" });
  load();
  await overtaken;
  assert.deepEqual(made.tracks.map(({ stopped }) => stopped), [true, false]);
  assert.equal(audio.listening, true);
});

test("a loudspeaker whose worklet fails is so said, and can be tried again", async () => {
  const { audio } = browser();
  Context.lacks = "playback-worklet.js";
  await assert.rejects(audio.openSpeaker(), { name: "VoiceError", code: "sound_failed" });
  Context.lacks = "nothing";
  await audio.openSpeaker();
  assert.equal(audio.rate, 44100);
});

test("a loudspeaker is silenced in whatever words a browser says so", async () => {
  const { audio } = browser();
  assert.equal(audio.silenced, false);
  await audio.openSpeaker();
  for (const [state, silenced] of [["suspended", true], ["interrupted", true], ["running", false]]) {
    made.contexts[0].state = state;
    assert.equal(audio.silenced, silenced);
  }
});

test("whoever asks for the place of a loudspeaker that is closed is answered, and the next one asks anew", async () => {
  const { audio } = browser();
  await audio.openSpeaker();
  Port.deaf = true;
  const answers = [];
  void audio.position().then((answer) => answers.push(answer));
  await audio.close();
  await null;
  assert.deepEqual(answers, [null]);
  Port.deaf = false;
  await audio.openSpeaker();
  assert.deepEqual(await audio.position(), { epoch: 2, samples: 7 });
});

test("what is missing is said in one word", async () => {
  const found = { NotFoundError: "missing", OverconstrainedError: "missing" };
  const codes = { NotAllowedError: "refused", ...found, NotReadableError: "busy" };
  for (const [name, code] of Object.entries(codes)) {
    const { audio } = browser({ refuses: name });
    await audio.openSpeaker();
    await assert.rejects(audio.openMicrophone(), { code: `microphone_${code}` });
    assert.equal(audio.listening, false);
  }
  await assert.rejects(browser({ secure: false, devices: false }).audio.openMicrophone(), { code: "insecure_origin" });
  await assert.rejects(browser({ devices: false }).audio.openMicrophone(), { code: "microphone_missing" });
  await assert.rejects(browser({ secure: false }).audio.openSpeaker(), { code: "insecure_origin" }); // as Chromium does
  delete globalThis.AudioWorkletNode;
  await assert.rejects(browser({ worklets: false }).audio.openSpeaker(), { code: "no_worklet" });
  await assert.rejects(browser({ worklets: false, secure: false }).audio.openSpeaker(), { code: "insecure_origin" });
});

test("a browser's time and chance", () => {
  const { now, random, setTimer, clearTimer } = browserEnvironment();
  assert.ok(now() >= 0 && random() < 1);
  clearTimer(setTimer(() => assert.fail("it was cleared"), 0));
});
