// @openai/agents-realtime in Node, with a scripted microphone and a player that takes its time.
// Arguments: the server's URL, its key, and a folder with what the person says.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents-realtime';
import { z } from 'zod';

const RATE = 24_000;
const FRAME_MS = 40;
const FRAME_BYTES = (RATE * FRAME_MS * 2) / 1000;
const LISTENS_MS = 1200;
const ASKED = 'What is the weather in Paris?';
const FORECAST = 'It is raining in Paris, 11 degrees.';

const [url, key, folder] = process.argv.slice(2);
const clip = (name) => readFileSync(join(folder, `${name}.pcm`));

const chooseTools = (choice) =>
  session.transport.sendEvent({ type: 'session.update', session: { type: 'realtime', tool_choice: choice } });

const getWeather = tool({
  name: 'get_weather',
  description: 'Get the current weather of a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    assert(city);
    chooseTools('none');
    return FORECAST;
  },
});

const agent = new RealtimeAgent({
  name: 'Guide',
  instructions: 'You are a friendly voice assistant. Answer in one short sentence.',
  tools: [getWeather],
});
const session = new RealtimeSession(agent, {
  transport: 'websocket',
  config: { toolChoice: 'none', providerData: { max_output_tokens: 30 } },
});

// What the SDK tells, counted, and how long what has come will still play.
const counts = {};
const errors = [];
let waiting = [];
let playsUntil = 0;
let stopped = '';
const shown = new Map();

const note = (name) => {
  counts[name] = (counts[name] ?? 0) + 1;
  waiting = waiting.filter((check) => !check());
};
const until = (name, count) =>
  new Promise((resolve) => {
    const check = () => (counts[name] ?? 0) >= count && (resolve(), true);
    if (!check()) waiting.push(check);
  });
const heardOut = () => sleep(Math.max(0, playsUntil - Date.now()));

session.on('audio', ({ data }) => {
  playsUntil = Math.max(playsUntil, Date.now()) + (data.byteLength / 2 / RATE) * 1000;
  note('audio');
});
session.on('audio_interrupted', () => {
  playsUntil = 0;
  note('audio_interrupted');
});
session.on('agent_tool_end', (_context, _agent, _tool, result) => {
  assert.equal(result, FORECAST);
  note('tool_end');
});
session.on('error', (error) => {
  errors.push(error);
  console.error(JSON.stringify(error));
});
session.transport.on('turn_done', () => note('turn_done'));
session.transport.on('turn_started', () => note('turn_started'));
session.transport.on('conversation.item.truncated', ({ item_id: item }) => {
  stopped = item;
});
session.transport.on('conversation.item.retrieved', ({ item }) => shown.set(item.id, item.content?.[0].transcript));

let queued = Buffer.alloc(0);
const say = (pcm) => {
  queued = Buffer.concat([queued, pcm]);
};
let open = true;
const speak = async () => {
  for (let due = Date.now(); open; due += FRAME_MS) {
    const frame = Buffer.alloc(FRAME_BYTES);
    queued.copy(frame, 0, 0, FRAME_BYTES);
    queued = queued.subarray(FRAME_BYTES);
    session.sendAudio(frame.buffer.slice(frame.byteOffset, frame.byteOffset + FRAME_BYTES));
    await sleep(Math.max(0, due + FRAME_MS - Date.now()));
  }
};

await session.connect({ apiKey: key, url: `${url.replace('http', 'ws')}/v1/realtime?model=gpt-realtime` });
const speaking = speak();
say(clip('question'));
await until('turn_done', 1);
await heardOut();
say(clip('story'));
await until('turn_started', 2);
await until('audio', counts.audio + 1);
await sleep(LISTENS_MS);
say(clip('cut_in'));
await until('audio_interrupted', 1);
await until('turn_done', 3);
await heardOut();
chooseTools('required');
session.sendMessage(ASKED);
await until('tool_end', 1);
await until('turn_done', 5);
open = false;
await speaking;

// The SDK's own history shows what was heard of the story, and nothing more.
const replies = session.history.filter((item) => item.role === 'assistant');
const [, story] = replies;
assert.equal(story.itemId, stopped);
assert.equal(story.content[0].transcript, shown.get(stopped));
assert.deepEqual(errors, []);
session.close();
