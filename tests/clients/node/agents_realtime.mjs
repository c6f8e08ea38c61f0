// @openai/agents-realtime in Node, over WebSocket.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { RealtimeAgent, RealtimeSession, tool as asTool } from '@openai/agents-realtime';
import { z } from 'zod';
import { ASKED, FORECAST, INSTRUCTIONS, LISTENS_MS, MAX_TOKENS, Microphone, News, play, SKY } from './script.mjs';

/** Hold a scenario in a session of its own. */
async function talking(place, scenario, config = {}) {
  const news = new News();
  const microphone = new Microphone();
  const getWeather = asTool({
    name: 'get_weather',
    description: 'Get the current weather of a city.',
    parameters: z.object({ city: z.string() }),
    execute: async (given) => {
      chooseTools('none');
      news.note('called', given);
      return FORECAST;
    },
  });
  const agent = new RealtimeAgent({ name: 'Guide', instructions: INSTRUCTIONS, tools: [getWeather] });
  const session = new RealtimeSession(agent, {
    transport: 'websocket',
    config: { toolChoice: 'none', providerData: { max_output_tokens: MAX_TOKENS }, ...config },
  });
  const chooseTools = (choice) =>
    session.transport.sendEvent({ type: 'session.update', session: { type: 'realtime', tool_choice: choice } });
  session.on('audio', () => news.note('audio'));
  session.on('audio_interrupted', () => news.note('audio_interrupted'));
  session.on('agent_tool_end', (_context, _agent, { name }, result) => news.note('tool_end', { name, result }));
  session.on('error', ({ error }) => news.fail(error));
  for (const type of ['turn_done', 'session.updated', 'conversation.item.truncated'])
    session.transport.on(type, (event) => news.note(type, event));
  session.transport.on('conversation.item.retrieved', ({ item }) => news.note(`retrieved ${item.id}`, item));
  const words = (role, place) =>
    session.history.filter((item) => item.role === role).at(place ?? -1).content[0].transcript;
  const send = (pcm, options) =>
    session.sendAudio(pcm.buffer.slice(pcm.byteOffset, pcm.byteOffset + pcm.length), options);
  try {
    await session.connect({ apiKey: place.key, url: `${place.websocket}/realtime?model=gpt-realtime` });
    await news.until('session.updated');
    const listening = !('audio' in config);
    const speaking = listening && microphone.run(send);
    const seen = await scenario({ session, news, microphone, words, send, chooseTools });
    microphone.close();
    await speaking;
    return seen;
  } finally {
    microphone.close();
    session.close();
  }
}

const connect = (place) => talking(place, async () => ({}));

const voice = (place) =>
  talking(place, async ({ news, microphone, words }) => {
    microphone.say(place.clip('question'));
    await news.until('turn_done');
    return { asked: words('user'), said: words('assistant') };
  });

const interruption = (place) =>
  talking(place, async ({ session, news, microphone, words }) => {
    microphone.say(place.clip('story'));
    await news.until('audio');
    await sleep(LISTENS_MS);
    microphone.say(place.clip('cut_in'));
    await news.until('audio_interrupted');
    await news.until('turn_done', 2);
    // The SDK's own history shows what was heard of the story, and nothing more.
    const { item_id: stopped } = await news.until('conversation.item.truncated');
    const item = await news.until(`retrieved ${stopped}`);
    const story = session.history.filter(({ role }) => role === 'assistant')[0];
    assert.equal(story.itemId, stopped);
    assert.equal(story.content[0].transcript, item.content[0].transcript);
    return { kept: words('assistant', -2), said: words('assistant') };
  });

const tool = (place) =>
  talking(place, async ({ session, news, words, chooseTools }) => {
    chooseTools('required');
    session.sendMessage(ASKED);
    await news.until('turn_done', 2);
    const { name, result } = await news.until('tool_end');
    assert.equal(result, FORECAST);
    return { called: name, arguments: await news.until('called'), said: words('assistant') };
  });

const text = (place) =>
  talking(place, async ({ session, news, words }) => {
    session.sendMessage(SKY);
    await news.until('turn_done');
    return { said: words('assistant') };
  });

const pushToTalk = (place) =>
  talking(
    place,
    async ({ session, news, words, send }) => {
      send(place.clip('question'), { commit: true });
      session.transport.sendEvent({ type: 'response.create' });
      await news.until('turn_done');
      return { asked: words('user'), said: words('assistant') };
    },
    { audio: { input: { turnDetection: null } } },
  );

await play('@openai/agents-realtime', { connect, voice, interruption, tool, text, push_to_talk: pushToTalk });
