/** The page's Session and a VoiceClient with fakes around it, and all the notices that were shown. */

import assert from "node:assert/strict";

import { Notices } from "../demo/notices.js";
import { Session } from "../demo/session.js";
import { VoiceClient, VoiceError } from "../index.js";
import { FakeAudio, FakeWorld, settle } from "./fakes.js";

class Room extends FakeAudio {
  refusal = "";
  prompt = null; // the browser asks the person: nothing happens until the answer
  silent = "";
  opening = null; // the loudspeaker's, if it takes time
  asked = [];

  async openSpeaker() {
    await this.opening;
    if (this.silent) throw new VoiceError(this.silent);
    await super.openSpeaker();
  }

  async openMicrophone(options) {
    this.asked.push(options);
    await this.prompt;
    if (this.refusal) throw new VoiceError(this.refusal);
    await super.openMicrophone();
  }
}

export function page({ reason = "unreachable", storage, keyed = false } = {}) {
  const world = new FakeWorld();
  let audio;
  const makeAudio = (handlers) => (audio = new Room(handlers));
  const { environment } = world;
  const client = new VoiceClient({ url: "ws://here/v1/voice", environment, audio: makeAudio, storage });
  const shown = [];
  const dividers = [];
  const notices = new Notices((notice) => shown.push(notice?.code ?? ""), environment);
  const session = new Session(client, notices, {
    microphone: () => ({ deviceId: "chosen", echoCancellation: false }),
    speaker: () => "",
    prepare: async () => undefined,
    probe: async () => reason,
    keyed: () => keyed,
    changed: () => undefined,
    divide: (words) => dividers.push(words),
    setTimer: environment.setTimer,
  });
  return { world, audio, client, notices, session, shown, dividers, code: () => notices.current?.code ?? "" };
}

export async function begun(options) {
  const all = page(options);
  const beginning = all.session.begin();
  await settle();
  await all.world.greet();
  assert.equal(await beginning, true);
  return all;
}
