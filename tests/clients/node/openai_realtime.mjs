// openai (npm): its OpenAIRealtimeWS.

import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import {
  ASKED,
  FORECAST,
  INSTRUCTIONS,
  LISTENS_MS,
  MAX_TOKENS,
  Microphone,
  News,
  Player,
  play,
  said,
  SKY,
  typed,
  WEATHER,
} from './script.mjs';

const TRANSCRIBED = 'conversation.item.input_audio_transcription.completed';
const LISTENING = { type: 'server_vad', interrupt_response: true };

// The client makes wss:// of every base URL. To a server without TLS it needs another way to connect.
const PLAIN = { createConnection: ({ host, port }) => net.connect({ host, port }) };

/** Hold a scenario on a connection of its own. */
async function calling(place, turnDetection, scenario) {
  const client = new OpenAI({ apiKey: place.key, baseURL: place.api });
  const options = place.url.startsWith('https:') ? {} : PLAIN;
  const realtime = new OpenAIRealtimeWS({ model: 'gpt-realtime', options }, client);
  const news = new News();
  const player = new Player();
  const microphone = new Microphone();
  realtime.on('error', (error) => news.fail(error));
  realtime.on('event', (event) => {
    if (event.type === 'response.output_audio.delta')
      player.take(event.item_id, Buffer.from(event.delta, 'base64').length);
    const cut = event.type === 'input_audio_buffer.speech_started' && player.stop();
    if (cut) realtime.send({ type: 'conversation.item.truncate', ...cut });
    news.note(event.type, event);
  });
  const append = (pcm) => realtime.send({ type: 'input_audio_buffer.append', audio: pcm.toString('base64') });
  try {
    await news.until('session.created');
    realtime.send({
      type: 'session.update',
      session: {
        type: 'realtime',
        instructions: INSTRUCTIONS,
        max_output_tokens: MAX_TOKENS,
        audio: { input: { transcription: { model: 'whisper-1' }, turn_detection: turnDetection } },
        tools: [WEATHER],
        tool_choice: 'none',
      },
    });
    await news.until('session.updated');
    const speaking = turnDetection && microphone.run(append);
    const seen = await scenario({ realtime, news, microphone, append });
    microphone.close();
    await speaking;
    return seen;
  } finally {
    microphone.close();
    realtime.close();
  }
}

/** Ask for a response; return how it ended. */
async function respond({ realtime, news }, response) {
  const before = news.counts['response.done'] ?? 0;
  realtime.send({ type: 'response.create', response });
  return (await news.until('response.done', before + 1)).response;
}

const connect = (place) => calling(place, LISTENING, async () => ({}));

const voice = (place) =>
  calling(place, LISTENING, async ({ news, microphone }) => {
    microphone.say(place.clip('question'));
    const { transcript } = await news.until(TRANSCRIBED);
    return { asked: transcript, said: said((await news.until('response.done')).response) };
  });

const interruption = (place) =>
  calling(place, LISTENING, async ({ realtime, news, microphone }) => {
    microphone.say(place.clip('story'));
    await news.until('response.output_audio.delta');
    await sleep(LISTENS_MS);
    microphone.say(place.clip('cut_in'));
    const [story] = (await news.until('response.done')).response.output;
    const { response } = await news.until('response.done', 2);
    realtime.send({ type: 'conversation.item.retrieve', item_id: story.id });
    const { item } = await news.until('conversation.item.retrieved');
    return { kept: item.content[0].transcript, said: said(response) };
  });

const tool = (place) =>
  calling(place, LISTENING, async (call) => {
    call.realtime.send({ type: 'conversation.item.create', item: typed(ASKED) });
    const [{ name, arguments: text, call_id }] = (await respond(call, { tool_choice: 'required' })).output;
    const item = { type: 'function_call_output', call_id, output: FORECAST };
    call.realtime.send({ type: 'conversation.item.create', item });
    return { called: name, arguments: JSON.parse(text), said: said(await respond(call, { tool_choice: 'none' })) };
  });

const text = (place) =>
  calling(place, LISTENING, async (call) => {
    call.realtime.send({ type: 'conversation.item.create', item: typed(SKY) });
    return { said: said(await respond(call, { output_modalities: ['text'] })) };
  });

const pushToTalk = (place) =>
  calling(place, null, async (call) => {
    call.append(place.clip('question'));
    call.realtime.send({ type: 'input_audio_buffer.commit' });
    const { transcript } = await call.news.until(TRANSCRIBED);
    return { asked: transcript, said: said(await respond(call, {})) };
  });

await play('openai', { connect, voice, interruption, tool, text, push_to_talk: pushToTalk });
