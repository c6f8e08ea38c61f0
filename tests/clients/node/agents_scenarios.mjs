// The scenarios of @openai/agents-realtime: in Node and in a browser, over WebSocket and over WebRTC.

import { ASKED, FORECAST, INSTRUCTIONS, LISTENS_MS, MAX_TOKENS, Microphone, News, RATE, SKY, sleep } from './portable.mjs';

const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
};

/** A WebSocket: the application sends the microphone's sound, and the SDK tells of the sound that comes. */
export const overWebSocket = {
  url: ({ websocket }) => `${websocket}/realtime?model=gpt-realtime`,
  microphone: () => new Microphone(),
  transport: () => 'websocket',
  start: (microphone, session) => microphone.run((frame) => session.sendAudio(frame.buffer)),
  begins: (session, note) => session.on('audio', note),
  stops: (session, note) => session.on('audio_interrupted', note),
  recording: async (session, _microphone, pcm) =>
    session.sendAudio(pcm.buffer.slice(pcm.byteOffset, pcm.byteOffset + pcm.length), { commit: true }),
};

/** A call over WebRTC: the SDK takes the sound of a media stream and plays what comes. */
export const overWebRtc = (sdk, makeMicrophone) => ({
  url: ({ api }) => `${api}/realtime/calls?model=gpt-realtime`,
  microphone: makeMicrophone,
  transport: ({ stream }) => new sdk.OpenAIRealtimeWebRTC({ mediaStream: stream }),
  start: async () => {},
  begins: (session, note) => session.transport.on('output_audio_buffer.started', note),
  stops: (session, note) => session.transport.on('output_audio_buffer.cleared', note),
  recording: async (session, microphone, pcm) => {
    microphone.say(pcm);
    await sleep((pcm.length / 2 / RATE) * 1000 + LISTENS_MS); // the sound takes its time to the server
    session.transport.sendEvent({ type: 'input_audio_buffer.commit' });
  },
});

function expect(condition, message) {
  if (!condition) throw new Error(message);
}

/** Return the scenarios by name; `line` is one of the above, and `events` takes all that the server tells. */
export function scenarios(sdk, line, events = []) {
  /** Hold a scenario in a session of its own. */
  async function talking(place, scenario, config = {}) {
    const news = new News();
    const microphone = line.microphone();
    const getWeather = sdk.tool({
      name: 'get_weather',
      description: 'Get the current weather of a city.',
      parameters: WEATHER,
      strict: true,
      execute: async (given) => {
        chooseTools('none');
        news.note('called', given);
        return FORECAST;
      },
    });
    const agent = new sdk.RealtimeAgent({ name: 'Guide', instructions: INSTRUCTIONS, tools: [getWeather] });
    const session = new sdk.RealtimeSession(agent, {
      transport: line.transport(microphone),
      config: { toolChoice: 'none', providerData: { max_output_tokens: MAX_TOKENS }, ...config },
    });
    const chooseTools = (choice) =>
      session.transport.sendEvent({ type: 'session.update', session: { type: 'realtime', tool_choice: choice } });
    line.begins(session, () => news.note('begins'));
    line.stops(session, () => news.note('stops'));
    session.on('agent_tool_end', (_context, _agent, { name }, result) => news.note('tool_end', { name, result }));
    session.on('error', ({ error }) => news.fail(error));
    session.transport.on('*', (event) => events.push(event));
    for (const type of ['turn_done', 'session.updated', 'conversation.item.truncated'])
      session.transport.on(type, (event) => news.note(type, event));
    session.transport.on('conversation.item.retrieved', ({ item }) => news.note(`retrieved ${item.id}`, item));
    const words = (role, place) =>
      session.history.filter((item) => item.role === role).at(place ?? -1).content[0].transcript;
    try {
      await session.connect({ apiKey: place.key, url: line.url(place) });
      await news.until('session.updated');
      const speaking = 'audio' in config ? undefined : line.start(microphone, session);
      const seen = await scenario({ session, news, microphone, words, chooseTools });
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
      await news.until('begins');
      await sleep(LISTENS_MS);
      microphone.say(place.clip('cut_in'));
      await news.until('stops');
      await news.until('turn_done', 2);
      // The SDK's own history shows what was heard of the story, and nothing more.
      const { item_id: stopped } = await news.until('conversation.item.truncated');
      const item = await news.until(`retrieved ${stopped}`);
      const story = session.history.filter(({ role }) => role === 'assistant')[0];
      expect(story.itemId === stopped, `${story.itemId} is the story, and ${stopped} was cut`);
      expect(story.content[0].transcript === item.content[0].transcript, JSON.stringify([story, item]));
      return { kept: words('assistant', -2), said: words('assistant') };
    });

  const tool = (place) =>
    talking(place, async ({ session, news, words, chooseTools }) => {
      chooseTools('required');
      session.sendMessage(ASKED);
      await news.until('turn_done', 2);
      const { name, result } = await news.until('tool_end');
      expect(result === FORECAST, result);
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
      async ({ session, news, microphone, words }) => {
        await line.recording(session, microphone, place.clip('question'));
        session.transport.sendEvent({ type: 'response.create' });
        await news.until('turn_done');
        return { asked: words('user'), said: words('assistant') };
      },
      { audio: { input: { turnDetection: null } } },
    );

  return { connect, voice, interruption, tool, text, push_to_talk: pushToTalk };
}
