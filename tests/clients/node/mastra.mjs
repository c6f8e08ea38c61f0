// Mastra: @mastra/voice-openai-realtime; with --chat an Agent of @mastra/core over HTTP.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { createOpenAI } from '@ai-sdk/openai';
import { Agent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { OpenAIRealtimeVoice } from '@mastra/voice-openai-realtime';
import { z } from 'zod';
import {
  ASKED,
  CHAT_MODEL,
  FORECAST,
  INSTRUCTIONS,
  LISTENS_MS,
  MAX_TOKENS,
  Microphone,
  News,
  Player,
  play,
  SKY,
  typed,
} from './script.mjs';

const at = process.argv.indexOf('--chat');
const overHttp = at > 0 && process.argv.splice(at, 1).length > 0;
const TRANSCRIBED = 'conversation.item.input_audio_transcription.completed';

const weather = (execute) =>
  createTool({
    id: 'get_weather',
    description: 'Get the current weather of a city.',
    inputSchema: z.object({ city: z.string() }),
    execute,
  });

/** Hold a scenario in a session of its own. */
async function talking(place, scenario) {
  const voice = new OpenAIRealtimeVoice({ apiKey: place.key, url: `${place.websocket}/realtime`, model: 'gpt-realtime' });
  const news = new News();
  const player = new Player();
  const microphone = new Microphone();
  const said = [];
  const configure = (session) => voice.updateConfig({ type: 'realtime', ...session });
  voice.addInstructions(INSTRUCTIONS);
  voice.addTools({
    get_weather: weather(async (given) => {
      configure({ tool_choice: 'none' });
      news.note('called', given.context ?? given);
      return FORECAST;
    }),
  });
  voice.on('error', (error) => news.fail(error.error ?? error));
  voice.on('writing', ({ text, role, response_id }) => {
    if (role !== 'assistant') return;
    if (said.at(-1)?.id !== response_id) said.push({ id: response_id, text: '' });
    said.at(-1).text += text;
  });
  for (const type of ['session.updated', 'conversation.item.retrieved'])
    voice.on(`openAIRealtime:${type}`, (event) => news.note(type, event));
  voice.on('openAIRealtime:response.output_audio.delta', ({ item_id, delta }) =>
    player.take(item_id, Buffer.from(delta, 'base64').length),
  );
  voice.on('input_audio_buffer.speech_started', () => {
    const cut = player.stop();
    if (cut) voice.sendEvent('conversation.item.truncate', cut);
  });
  for (const type of ['response.done', 'speaking', TRANSCRIBED]) voice.on(type, (event) => news.note(type, event));
  try {
    await voice.connect();
    configure({ tool_choice: 'none', max_output_tokens: MAX_TOKENS });
    await news.until('session.updated', 2);
    const send = (pcm) => voice.send(new Int16Array(pcm.buffer.slice(pcm.byteOffset, pcm.byteOffset + pcm.length)));
    return await scenario({ voice, news, microphone, said, configure, send });
  } finally {
    microphone.close();
    voice.close();
  }
}

const connect = (place) => talking(place, async () => ({}));

const voiceTurn = (place) =>
  talking(place, async ({ news, microphone, said, send }) => {
    microphone.run(send);
    microphone.say(place.clip('question'));
    await news.until('response.done');
    return { asked: (await news.until(TRANSCRIBED)).transcript, said: said[0].text };
  });

const interruption = (place) =>
  talking(place, async ({ voice, news, microphone, said, send }) => {
    microphone.run(send);
    microphone.say(place.clip('story'));
    await news.until('speaking');
    await sleep(LISTENS_MS);
    microphone.say(place.clip('cut_in'));
    const [story] = (await news.until('response.done')).response.output;
    await news.until('response.done', 2);
    voice.sendEvent('conversation.item.retrieve', { item_id: story.id });
    const { item } = await news.until('conversation.item.retrieved');
    return { kept: item.content[0].transcript, said: said[1].text };
  });

const tool = (place) =>
  talking(place, async ({ voice, news, said, configure }) => {
    configure({ tool_choice: 'required' });
    voice.sendEvent('conversation.item.create', { item: typed(ASKED) });
    await voice.answer({});
    await news.until('response.done', 2);
    return { called: 'get_weather', arguments: await news.until('called'), said: said[0].text };
  });

const text = (place) =>
  talking(place, async ({ voice, news, said }) => {
    voice.sendEvent('conversation.item.create', { item: typed(SKY) });
    await voice.answer({ options: { output_modalities: ['text'] } });
    await news.until('response.done');
    return { said: said[0].text };
  });

const pushToTalk = (place) =>
  talking(place, async ({ voice, news, said, configure, send }) => {
    configure({ audio: { input: { turn_detection: null } } });
    await send(place.clip('question'));
    voice.sendEvent('input_audio_buffer.commit');
    await voice.answer({});
    await news.until('response.done');
    return { asked: (await news.until(TRANSCRIBED)).transcript, said: said[0].text };
  });

// ---- over HTTP

const settings = { modelSettings: { maxOutputTokens: MAX_TOKENS, maxRetries: 0 } };

function agent({ api, key }, tools = {}) {
  // The temperature of an agent's settings does not arrive at the server; without one, answers vary.
  const steady = (url, init) => fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), temperature: 0 }) });
  const model = createOpenAI({ baseURL: api, apiKey: key, fetch: steady }).chat(CHAT_MODEL);
  return new Agent({ id: 'guide', name: 'Guide', instructions: INSTRUCTIONS, model, tools });
}

async function chatConnect(place) {
  assert((await agent(place).generate('Hello!', settings)).text);
  return {};
}

async function chatTool(place) {
  const given = [];
  const execute = async (input) => (given.push(input.context ?? input), FORECAST);
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? 'none' : 'required' });
  const options = { ...settings, maxSteps: 2, prepareStep };
  const { text: said } = await agent(place, { get_weather: weather(execute) }).generate(ASKED, options);
  return { called: 'get_weather', arguments: given[0], said };
}

async function chatText(place) {
  const { textStream } = await agent(place).stream(SKY, settings);
  const pieces = [];
  for await (const piece of textStream) pieces.push(piece);
  assert(pieces.length > 2);
  return { said: pieces.join('') };
}

const REALTIME = { connect, voice: voiceTurn, interruption, tool, text, push_to_talk: pushToTalk };
const CHAT = { connect: chatConnect, tool: chatTool, text: chatText };
await play(overHttp ? '@mastra/core' : '@mastra/voice-openai-realtime', overHttp ? CHAT : REALTIME);
