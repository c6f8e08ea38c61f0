// A call through @openai/agents-realtime in a browser. A test drives it over `window.call`, and reads what it noted.

import { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession, tool } from '/agents/openai-realtime-agents.mjs';

const FORECAST = 'It is raining in Paris, 11 degrees.';
const RATE = 48_000;
const RECORDER = `
registerProcessor('recorder', class extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
});`;

const call = { session: null, events: [], errors: [], tools: [], states: [], pieces: [], frames: 0 };
window.call = call;

const chooseTools = (choice) =>
  call.session.transport.sendEvent({ type: 'session.update', session: { type: 'realtime', tool_choice: choice } });

const getWeather = tool({
  name: 'get_weather',
  description: 'Get the current weather of a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  },
  strict: true,
  execute: async ({ city }) => {
    call.tools.push(city);
    chooseTools('none');
    return FORECAST;
  },
});

/** Record what the call's track plays, from now on. */
async function record() {
  const { peerConnection } = call.session.transport.connectionState;
  const context = new AudioContext({ sampleRate: RATE });
  await context.audioWorklet.addModule(URL.createObjectURL(new Blob([RECORDER], { type: 'text/javascript' })));
  const recorder = new AudioWorkletNode(context, 'recorder', { channelCount: 1, channelCountMode: 'explicit' });
  recorder.port.onmessage = ({ data }) => {
    call.pieces.push(data);
    call.frames += data.length;
  };
  const { track } = peerConnection.getReceivers()[0];
  context.createMediaStreamSource(new MediaStream([track])).connect(recorder).connect(context.destination);
}

/** Call until the session is set up; return whether the SDK chose WebRTC. `relay`: a TURN server that must be used. */
call.begin = async ({ url, secret, relay, providerData }) => {
  const agent = new RealtimeAgent({
    name: 'Guide',
    instructions: 'You are a friendly voice assistant. Answer in one short sentence.',
    tools: [getWeather],
  });
  const change = (connection) => {
    connection.setConfiguration({ iceServers: [relay], iceTransportPolicy: 'relay' });
    return connection;
  };
  const session = new RealtimeSession(agent, {
    ...(relay ? { transport: new OpenAIRealtimeWebRTC({ changePeerConnection: change }) } : {}),
    config: { toolChoice: 'none', providerData },
  });
  call.session = session;
  session.on('error', (error) => call.errors.push(JSON.stringify(error)));
  session.transport.on('connection_change', (state) => call.states.push(state));
  session.transport.on('*', (event) => call.events.push(event));
  await session.connect({ apiKey: secret, url });
  await record();
  return session.transport instanceof OpenAIRealtimeWebRTC;
};

call.askForTool = (text) => {
  chooseTools('required');
  call.session.sendMessage(text);
};

call.count = (type) => call.events.filter((event) => event.type === type).length;

/** Return what was heard, as 16-bit samples in base64. */
call.heard = () => {
  const samples = new Int16Array(call.frames);
  let at = 0;
  for (const piece of call.pieces) for (const one of piece) samples[at++] = Math.max(-1, Math.min(1, one)) * 32767;
  const bytes = new Uint8Array(samples.buffer);
  let text = '';
  for (let from = 0; from < bytes.length; from += 32_768) {
    text += String.fromCharCode(...bytes.subarray(from, from + 32_768));
  }
  return btoa(text);
};

/** Return the kinds of the addresses in use, and what was lost on the way here. */
call.path = async () => {
  const stats = [...(await call.session.transport.connectionState.peerConnection.getStats()).values()];
  const transport = stats.find(({ type }) => type === 'transport');
  const pair = stats.find(({ id }) => id === transport.selectedCandidatePairId);
  const kind = (name) => stats.find(({ id }) => id === name)?.candidateType;
  const { packetsReceived, packetsLost } = stats.find(({ type }) => type === 'inbound-rtp');
  return { local: kind(pair.localCandidateId), remote: kind(pair.remoteCandidateId), packetsReceived, packetsLost };
};
