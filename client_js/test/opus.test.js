import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { JitterBuffer, VoiceClient } from "../index.js";
import { OpusMicrophone, OpusReplies } from "../opus.js";
import { wishes } from "../wire.js";
import { FakeAudio, FakeWorld, settle } from "./fakes.js";
import { install, PACKET } from "./webcodecs.js";

const DELAY = 312;
const PCM_IN = { codec: "pcm16", rate: 16000 };
const PCM_OUT = { codec: "pcm16", rate: 24000 };
const OPUS_IN = { codec: "opus", rate: 48000 };
const OPUS_OUT = { codec: "opus", rate: 24000 };

let codecs;
beforeEach(() => (codecs = install()));
afterEach(() => codecs.remove());

// ---- choosing formats

test("Opus is asked for over a network, where the browser has it, one way or both", async () => {
  const far = "wss://voice.example/v1/voice";
  const both = { input: [OPUS_IN, PCM_IN], output: [OPUS_OUT, PCM_OUT] };
  assert.deepEqual(await wishes("auto", far), both);
  assert.deepEqual(await wishes("opus", new URL("ws://localhost:8000/v1/voice")), both);
  assert.deepEqual(await wishes("pcm16", far), { input: PCM_IN, output: PCM_OUT });
  codecs.FakeEncoder.supported = false;
  assert.deepEqual(await wishes("auto", far), { ...both, input: PCM_IN });
  codecs.FakeDecoder.supported = null;
  assert.deepEqual(await wishes("opus", far), { input: PCM_IN, output: PCM_OUT });
  codecs.remove();
  assert.deepEqual(await wishes("auto", far), { input: PCM_IN, output: PCM_OUT });
});

test("a server on this machine is spoken to in PCM16 unless one wants otherwise", async () => {
  const here = ["localhost", "localhost:8000", "a.localhost", "127.0.0.1", "127.8.0.1:9000", "[::1]", "[::1]:8000"];
  for (const host of here) assert.equal((await wishes("auto", `ws://${host}/v1/voice`)).input.codec, "pcm16", host);
  const there = ["192.168.0.2", "localhost.example", "notlocalhost", "127.0.0.1.example", "[::2]"];
  for (const host of there) assert.equal((await wishes("auto", `ws://${host}/v1/voice`)).input.length, 2, host);
});

// ---- the microphone

function microphone() {
  const packets = [];
  const errors = [];
  const one = new OpusMicrophone((data, last) => packets.push([data[0], last]), (error) => errors.push(error));
  const push = (number, last = false) => one.push(new Uint8Array(1920).fill(number), last);
  return { one, push, packets, errors };
}

test("a frame becomes a packet, later and in order; the last of a turn is known when it is made", () => {
  const { one, push, packets } = microphone();
  push(1);
  one.push(new Uint8Array(640), true); // of another rate
  push(2, true);
  push(3, true);
  const [encoder] = codecs.encoders;
  const { codec, sampleRate, numberOfChannels, opus } = encoder.config;
  assert.deepEqual([codec, sampleRate, numberOfChannels], ["opus", 48000, 1]);
  assert.equal(opus.frameDuration, 20000);
  assert.deepEqual(packets, []);
  encoder.step(2);
  assert.deepEqual(packets, [[1, false], [2, true]]);
  encoder.step();
  assert.deepEqual(packets.at(-1), [3, false]); // the turn was over
  push(4);
  one.close();
  encoder.step();
  push(5);
  assert.equal(packets.length, 3);
  assert.equal(codecs.encoders.length, 1);
});

test("an encoder that falls a second behind leaves sound out", () => {
  const { push, packets } = microphone();
  for (let n = 0; n < 60; n++) push(n);
  codecs.encoders[0].step();
  assert.equal(packets.length, 50);
});

test("an encoder that has worked is replaced, one that never did is told of once", () => {
  const { push, packets, errors } = microphone();
  push(1);
  codecs.encoders[0].step();
  push(2, true);
  codecs.encoders[0].die("QuotaExceededError");
  push(3);
  codecs.encoders[1].step();
  assert.deepEqual(packets, [[1, false], [3, true]]);
  assert.deepEqual(errors, []);
  codecs.encoders[1].die();
  push(4);
  codecs.encoders[2].die();
  push(5);
  assert.equal(errors.length, 1);
  assert.equal(codecs.encoders.length, 3);
});

test("a browser without an encoder says so with the first frame", () => {
  const { push, errors } = microphone();
  delete globalThis.AudioEncoder;
  push(1);
  push(2);
  assert.equal(errors.length, 1);
});

// ---- replies

function replies() {
  const told = [];
  const errors = [];
  const one = new OpusReplies({
    sound: (epoch, offset, samples) => told.push([epoch, offset, samples]),
    done: (epoch, length) => told.push([epoch, "done", length]),
    failed: (error) => errors.push(error),
  });
  const push = (epoch, ...numbers) => {
    for (const number of numbers) one.push(epoch, number * PACKET, Uint8Array.of(number));
  };
  /** The events so far; of sound, where it begins and ends. */
  const taken = () => {
    return told.splice(0).map(([epoch, what, rest]) => [epoch, what, rest.length ? what + rest.length : rest]);
  };
  return { one, push, told, taken, errors };
}

test("each sample lies where its number says: the codec's delay is cut away", async () => {
  const { one, push, told, taken } = replies();
  push(1, 0, 1, 2);
  one.finish(1, 1500);
  const [decoder] = codecs.decoders;
  assert.deepEqual(told, []);
  decoder.step(1);
  for (const [, offset, samples] of told) samples.forEach((value, n) => assert.equal(value, offset + n + DELAY));
  assert.deepEqual(taken(), [[1, 0, PACKET - DELAY]]);
  decoder.step(2);
  const [second, third, end] = [1, 2, 3].map((number) => number * PACKET - DELAY);
  assert.deepEqual(taken(), [[1, second, third], [1, third, end]]);
  decoder.step();
  await settle();
  assert.deepEqual(taken(), [[1, "done", 1500]]);
  assert.equal(decoder.state, "closed");
  assert.equal(decoder.kept, 0);
});

test("a reply taken up in its middle begins where its first packet does", () => {
  const { push, taken } = replies();
  push(4, 7, 8);
  codecs.decoders[0].step();
  const [first, second] = [7 * PACKET, 8 * PACKET - DELAY];
  assert.deepEqual(taken(), [[4, first, second], [4, second, second + PACKET]]);
});

test("a reply waits for the end of the one before, however quick its decoder is", async () => {
  const { one, push, taken } = replies();
  push(1, 0);
  one.finish(1, 500);
  push(2, 0);
  one.finish(2, 600);
  one.finish(3, 0); // of which no sound came
  const [first, second] = codecs.decoders;
  second.step();
  await settle();
  assert.deepEqual(taken(), []);
  first.step();
  await settle();
  const end = PACKET - DELAY;
  assert.deepEqual(taken(), [[1, 0, end], [1, "done", 500], [2, 0, end], [2, "done", 600], [3, "done", 0]]);
});

test("a reply that broke off is not waited for, nor said to be done", async () => {
  const { push, taken } = replies();
  push(1, 0);
  push(2, 0);
  const [first, second] = codecs.decoders;
  second.step();
  first.step();
  await settle();
  assert.deepEqual(taken(), [[1, 0, PACKET - DELAY], [2, 0, PACKET - DELAY]]);
});

test("an interruption drops what is in the decoder, and lets the next reply through", async () => {
  const { one, push, taken, errors } = replies();
  push(1, 0, 1);
  push(2, 0);
  const [first, second] = codecs.decoders;
  first.step(1);
  second.step();
  taken();
  one.interrupt(1);
  assert.equal(first.state, "closed");
  assert.deepEqual(taken(), [[2, 0, PACKET - DELAY]]);
  first.output(first.make(Uint8Array.of(1))); // one that was already on its way
  assert.equal(first.kept, 0);
  push(2, 1);
  one.finish(2, 1000);
  second.step();
  await settle();
  assert.deepEqual(taken(), [[2, PACKET - DELAY, 2 * PACKET - DELAY], [2, "done", 1000]]);
  one.restart();
  push(2, 0); // it comes again
  assert.equal(codecs.decoders.length, 3);
  assert.deepEqual(errors, []);
});

test("what comes of a reply that is over makes no decoder: an idle one is killed, and seems a failure", async () => {
  const { one, push, taken } = replies();
  push(1, 0);
  one.interrupt(1);
  push(1, 1); // it was on its way
  one.finish(1, 1500);
  push(2, 0, 1);
  one.finish(2, 900);
  assert.equal(codecs.decoders.length, 2);
  codecs.decoders[1].step();
  await settle();
  push(2, 2);
  one.push(3, 0, new Uint8Array(0)); // words without sound
  assert.equal(codecs.decoders.length, 2);
  assert.deepEqual(taken().at(-1), [2, "done", 900]);
  assert.ok(codecs.decoders.every(({ state }) => state === "closed"));
  one.restart();
  push(2, 1); // repeated after a break
  assert.equal(codecs.decoders.length, 3);
});

test("a decoder that fails is told of once, and nothing comes after it", async () => {
  for (const fails of [
    () => codecs.decoders[0].die(),
    () => {
      codecs.FakeDecoder.rate = 24000;
      codecs.decoders[0].step();
    },
  ]) {
    codecs = install();
    const { one, push, taken, errors } = replies();
    push(1, 0, 1);
    fails();
    push(1, 2);
    one.finish(1, 2000);
    await settle();
    assert.equal(errors.length, 1);
    assert.deepEqual(taken(), []);
  }
  const { push, errors } = replies();
  delete globalThis.AudioDecoder;
  push(1, 0);
  push(1, 1);
  assert.equal(errors.length, 1);
});

test("what lies behind a reply's end is not played, and the end is acked all the same", () => {
  const jitter = new JitterBuffer(48000);
  const heard = new Float32Array(2000);
  jitter.push(1, 0, new Float32Array(1960).fill(1));
  jitter.push(2, 0, new Float32Array(100).fill(2));
  jitter.finish(1, 1500);
  jitter.finish(2, 100);
  jitter.pull(heard);
  assert.deepEqual([heard[1499], heard[1500], heard[1599], heard[1600]], [1, 2, 2, 0]);
  jitter.push(3, 0, new Float32Array(3000));
  jitter.takeAcks();
  jitter.pull(heard);
  jitter.finish(3, 1000); // which was too late
  assert.deepEqual(jitter.takeAcks(), [{ epoch: 3, samples: 2000, queued: 0 }]);
  assert.equal(jitter.playing, false);
});

// ---- a conversation

async function converse() {
  const world = new FakeWorld();
  let audio;
  const makeAudio = (handlers, rate) => (audio = Object.assign(new FakeAudio(handlers), { wireRate: rate }));
  const { environment } = world;
  const client = new VoiceClient({ url: "wss://there/v1/voice", environment, audio: makeAudio });
  const faults = [];
  client.on("fault", ({ code }) => faults.push(code));
  const connecting = client.connect();
  await world.greet(1, { input: OPUS_IN, output: OPUS_OUT });
  await connecting;
  await client.talk();
  const frame = (bytes = 1920) => audio.handlers.frame({ pcm: new Uint8Array(bytes).fill(7), level: 0, onset: false });
  return { world, audio, client, faults, frame };
}

test("packets go out, and the button's end behind the last of them", async () => {
  const { world, audio, client, frame } = await converse();
  assert.deepEqual(world.socket.sent[0][1].input, [OPUS_IN, PCM_IN]);
  assert.equal(audio.wireRate, 48000);
  client.setPushToTalk(true);
  client.press();
  frame();
  client.release();
  codecs.encoders[0].step();
  assert.equal(world.socket.said("end").length, 0); // the frame that the release fell into is not full yet
  frame();
  assert.equal(world.socket.said("end").length, 0);
  codecs.encoders[0].step();
  assert.deepEqual(world.socket.sent.slice(-3).map(([name]) => name), ["audio", "audio", "end"]);
  assert.deepEqual(world.socket.said("audio")[0][1], Uint8Array.of(7, 7, 7, 7));
});

test("what is played of decoded sound is acked in the samples that the server counts", async () => {
  const { world, audio } = await converse();
  audio.orders.length = 0;
  world.socket.tell("reply", 2, 1, 1);
  for (const n of [0, 1]) world.socket.tell("audio", 3 + n, 1, 480 * n, Uint8Array.of(n), []);
  world.socket.tell("audio_done", 5, 1, 650);
  world.socket.tell("hold", 6, 1);
  assert.deepEqual(audio.orders, [{ do: "hold", epoch: 1 }]); // does not wait for the decoder
  codecs.decoders[0].step();
  await settle();
  const [, ...sound] = audio.orders;
  assert.deepEqual(sound.map((order) => order.do), ["push", "push", "finish"]);
  assert.equal(sound.reduce((sum, order) => sum + order.samples.length, 0), 2 * PACKET - DELAY);
  assert.equal(sound[2].end, 1300);
  audio.handlers.acks([{ epoch: 1, samples: 961, queued: 439 }, { epoch: 1, samples: 1300, queued: 0 }]);
  assert.deepEqual(world.socket.said("played"), [["played", 1, 480, 220], ["played", 1, 650, 0]]);
});

test("an interruption leaves nothing of the reply in the decoder", async () => {
  const { world, audio, client } = await converse();
  world.socket.tell("audio", 2, 1, 0, Uint8Array.of(0), []);
  await client.interrupt();
  codecs.decoders[0].output(codecs.decoders[0].make(Uint8Array.of(0)));
  assert.deepEqual(audio.orders.filter((order) => order.do === "push"), []);
  assert.deepEqual(audio.orders.at(-1), { do: "interrupt", epoch: 1 });
});

test("without its codec a conversation begins anew in PCM16, and the page is told", async () => {
  for (const fails of [
    ({ frame }) => (frame(), codecs.encoders[0].die("NotSupportedError")),
    ({ world }) => (world.socket.tell("audio", 2, 1, 0, Uint8Array.of(0), []), codecs.decoders[0].die()),
  ]) {
    codecs = install();
    const conversation = await converse();
    const { world, audio, client, faults, frame } = conversation;
    fails(conversation);
    assert.deepEqual(faults, ["codec_failed"]);
    assert.deepEqual(world.sockets[0].sent.at(-1), ["bye"]);
    await world.clock.pass(100);
    await world.greet();
    assert.equal(world.sockets.length, 2);
    assert.deepEqual(world.socket.sent[0][1].input, PCM_IN);
    assert.deepEqual(world.socket.sent[0][1].output, PCM_OUT);
    assert.equal(client.status, "open");
    assert.equal(audio.wireRate, 16000);
    frame(); // still of the old rate
    frame(640);
    assert.deepEqual(world.socket.said("audio").map(([, data]) => data.length), [640]);
    world.socket.tell("audio", 2, 1, 0, new Uint8Array(960), []);
    assert.equal(audio.orders.at(-1).do, "push");
  }
});

test("a conversation taken up again goes on in its own codec", async () => {
  const { world, audio, client } = await converse();
  world.socket.tell("audio", 2, 1, 0, Uint8Array.of(0), []);
  codecs.decoders[0].step();
  audio.standing = { epoch: 1, samples: 400 };
  world.socket.drop();
  await world.clock.pass(100);
  world.socket.open();
  await settle();
  assert.deepEqual(world.socket.sent[0][1].played, [1, 200]);
  assert.equal(world.socket.sent[0][1].input, undefined);
  await world.greet(3, { resumed: true, input: OPUS_IN, output: OPUS_OUT });
  world.socket.tell("audio", 2, 1, 0, Uint8Array.of(0), []);
  assert.equal(codecs.decoders[0].state, "closed");
  codecs.decoders[1].step();
  assert.deepEqual([audio.orders.at(-1).do, audio.orders.at(-1).offset], ["push", 0]);
  assert.equal(client.ready.output.codec, "opus");
});

test("a reply whose end was told before a break ends there after it too, and its decoder goes", async () => {
  const { world, audio } = await converse();
  const packets = [0, 1, 2].map((n) => ["audio", 2 + n, 1, 480 * n, Uint8Array.of(n), []]);
  for (const packet of packets) world.socket.tell(...packet);
  world.socket.tell("audio_done", 5, 1, 650);
  world.socket.drop();
  await world.clock.pass(100);
  await world.greet(6, { resumed: true, input: OPUS_IN, output: OPUS_OUT });
  audio.orders.length = 0;
  for (const packet of packets) world.socket.tell(...packet);
  codecs.decoders[1].step();
  await settle();
  const finish = audio.orders.find((order) => order.do === "finish");
  assert.equal(finish.end, 1300);
  assert.deepEqual(codecs.decoders.map(({ state }) => state), ["closed", "closed"]);
});
