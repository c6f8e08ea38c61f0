// Vercel's AI SDK over HTTP: the provider @ai-sdk/openai, or with --compatible @ai-sdk/openai-compatible.

import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import * as ai from 'ai';
import { z } from 'zod';
import { ASKED, CHAT_MODEL, FORECAST, MAX_TOKENS, play, RATE, SKY } from './script.mjs';

const at = process.argv.indexOf('--compatible');
const compatible = at > 0 && process.argv.splice(at, 1).length > 0;
const limits = { temperature: 0, maxOutputTokens: MAX_TOKENS, maxRetries: 0 };

/** Return the models to try: OpenAI's provider has two ways to chat. */
function chats({ api, key }) {
  if (compatible)
    return [createOpenAICompatible({ name: 'voxlane', baseURL: api, apiKey: key, includeUsage: true })(CHAT_MODEL)];
  const openai = createOpenAI({ baseURL: api, apiKey: key });
  return [openai.chat(CHAT_MODEL), openai(CHAT_MODEL)];
}

/** Return a clip as a file. */
function wav(pcm) {
  const head = Buffer.alloc(44);
  head.write('RIFF', 0);
  head.writeUInt32LE(36 + pcm.length, 4);
  head.write('WAVEfmt ', 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22);
  head.writeUInt32LE(RATE, 24);
  head.writeUInt32LE(RATE * 2, 28);
  head.writeUInt16LE(2, 32);
  head.writeUInt16LE(16, 34);
  head.write('data', 36);
  head.writeUInt32LE(pcm.length, 40);
  return Buffer.concat([head, pcm]);
}

async function connect(place) {
  for (const model of chats(place)) assert((await ai.generateText({ model, prompt: 'Hello!', ...limits })).text);
  return {};
}

async function voice(place) {
  const openai = createOpenAI({ baseURL: place.api, apiKey: place.key });
  const transcribe = ai.transcribe ?? ai.experimental_transcribe;
  const generateSpeech = ai.generateSpeech ?? ai.experimental_generateSpeech;
  const listener = openai.transcription('whisper-1');
  const { text: asked } = await transcribe({ model: listener, audio: wav(place.clip('question')) });
  const { text: answer } = await ai.generateText({ model: chats(place)[0], prompt: asked, ...limits });
  const { audio } = await generateSpeech({ model: openai.speech('tts-1'), voice: 'alloy', text: answer });
  const { text: heard } = await transcribe({ model: listener, audio: audio.uint8Array });
  return { asked, said: heard };
}

async function tool(place) {
  let seen;
  for (const model of chats(place)) {
    const given = [];
    const getWeather = ai.tool({
      description: 'Get the current weather of a city.',
      inputSchema: z.object({ city: z.string() }),
      execute: async (input) => (given.push(input), FORECAST),
    });
    const { text, steps } = await ai.generateText({
      model,
      prompt: ASKED,
      tools: { get_weather: getWeather },
      stopWhen: (ai.stepCountIs ?? ai.isStepCount)(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? 'none' : 'required' }),
      ...limits,
    });
    assert.equal(given.length, 1);
    seen = { called: steps[0].toolCalls[0].toolName, arguments: given[0], said: text };
  }
  return seen;
}

async function text(place) {
  let said;
  for (const model of chats(place)) {
    const { textStream, usage } = ai.streamText({
      model,
      prompt: SKY,
      onError: ({ error }) => {
        throw error;
      },
      ...limits,
    });
    const pieces = [];
    for await (const piece of textStream) pieces.push(piece);
    assert(pieces.length > 2);
    assert((await usage).outputTokens > 0);
    said = pieces.join('');
  }
  return { said };
}

await play(compatible ? '@ai-sdk/openai-compatible' : '@ai-sdk/openai', { connect, voice, tool, text });
