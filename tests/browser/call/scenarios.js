// Plays the scenarios of @openai/agents-realtime in a browser. A test calls `window.playScenario`.

import * as sdk from '/agents/openai-realtime-agents.mjs';
import { overWebRtc, overWebSocket, scenarios } from '/clients/agents_scenarios.mjs';
import { RATE, told } from '/clients/portable.mjs';

/** A microphone as a media stream: silence, and clips that are said into it. */
class StreamMicrophone {
  #context = new AudioContext();
  #destination = this.#context.createMediaStreamDestination();
  #ends = 0;

  get stream() {
    return this.#destination.stream;
  }

  say(pcm) {
    const samples = new Int16Array(pcm.buffer, pcm.byteOffset, pcm.length / 2);
    const buffer = this.#context.createBuffer(1, samples.length, RATE);
    buffer.getChannelData(0).set(Float32Array.from(samples, (one) => one / 32768));
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#destination);
    const at = Math.max(this.#ends, this.#context.currentTime);
    source.start(at);
    this.#ends = at + buffer.duration;
  }

  close() {
    if (this.#context.state !== 'closed') this.#context.close();
  }
}

const lines = { WebSocket: () => overWebSocket, WebRTC: () => overWebRtc(sdk, () => new StreamMicrophone()) };

/** Play a scenario; return what the user has seen of it, or why it failed, and all events of the server. */
window.playScenario = async ({ scenario, over, url, key, clips }) => {
  const events = [];
  const clip = (name) => Uint8Array.from(atob(clips[name]), (one) => one.charCodeAt(0));
  const place = { url, key, clip, api: `${url}/v1`, websocket: `${url.replace('http', 'ws')}/v1` };
  const outcome = await told(scenarios(sdk, lines[over](), events)[scenario], place);
  return { ...outcome, events };
};
