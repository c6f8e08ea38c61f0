// OpenAI's Twilio transport in Node: calls on Twilio's Media Streams become conversations over the Realtime API.
// Arguments: the server's URL and its key. It prints the port that it listens on, and after a call its history as JSON.

import { TwilioRealtimeTransportLayer } from '@openai/agents-extensions';
import { RealtimeAgent, RealtimeSession } from '@openai/agents-realtime';
import { WebSocketServer } from 'ws';

const [url, key] = process.argv.slice(2);
const agent = new RealtimeAgent({
  name: 'Guide',
  instructions: 'You are a friendly voice assistant. Answer in one short sentence.',
});
const listener = new WebSocketServer({ host: '127.0.0.1', port: 0 });

listener.on('listening', () => console.log(listener.address().port));
listener.on('connection', async (line) => {
  const errors = [];
  const transport = new TwilioRealtimeTransportLayer({ twilioWebSocket: line });
  const session = new RealtimeSession(agent, {
    transport,
    config: {
      // The session's default, 24 kHz PCM, would win over what the transport chooses.
      audio: { input: { format: { type: 'audio/pcmu' } }, output: { format: { type: 'audio/pcmu' } } },
      toolChoice: 'none',
      providerData: { max_output_tokens: 30 },
    },
  });
  session.on('error', (error) => errors.push(error));
  line.on('close', () => {
    console.log(JSON.stringify({ history: session.history, errors }));
    listener.close();
  });
  await session.connect({ apiKey: key, url: `${url.replace('http', 'ws')}/v1/realtime?model=gpt-realtime` });
});
