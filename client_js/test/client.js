/** A VoiceClient with fakes around it, connected by default, and all its events. */

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

/** Break the line and resume the conversation; `told` is what the server repeats. */
export async function comeBack(world, { values = {}, told = [] } = {}) {
  world.socket.drop();
  await world.clock.pass(4000);
  await world.greet(90, { resumed: true, ...values });
  for (const message of told) world.socket.tell(...message);
}

/** Answer the newest ping: the server has repeated everything. */
export function answerPing(world) {
  const [, mark] = world.socket.said("ping").at(-1);
  world.socket.tell("pong", 0, mark, 0);
}

export const SOUND = ["audio", 3, 4, 0, new Uint8Array(4800), []];

/** A conversation in which reply 4 speaks. */
export async function speaking() {
  const all = await begin();
  await all.client.listen();
  all.world.socket.tell("reply", 2, 4, 1);
  all.world.socket.tell(...SOUND);
  return all;
}
