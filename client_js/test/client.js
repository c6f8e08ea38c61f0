/** A VoiceClient among fakes, connected unless said otherwise, with all that it has told. */

import { VoiceClient } from "../index.js";
import { FakeAudio, FakeWorld } from "./fakes.js";

export async function begin(options = {}, { connected = true } = {}) {
  const world = new FakeWorld();
  let audio;
  const makeAudio = (handlers) => (audio = new FakeAudio(handlers));
  const { environment } = world;
  const client = new VoiceClient({ url: "ws://here/v1/voice", environment, audio: makeAudio, ...options });
  const told = [];
  for (const name of ["status", "ready", "fault", "over", "toolcall", "microphone", "figures", "level"]) {
    client.on(name, (detail) => told.push([name, detail]));
  }
  const of = (name) => told.filter(([first]) => first === name).map(([, detail]) => detail);
  if (connected) {
    const connecting = client.connect();
    await world.greet();
    await connecting;
  }
  return { world, audio, client, told, of };
}

export const silence = () => ({ pcm: new Uint8Array(640), level: 0.1, onset: false });
