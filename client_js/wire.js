/**
 * Sound between the wire and the devices, whatever the codec: which to ask for, frames to packets, messages about
 * replies to a loudspeaker's orders.
 *
 * It knows formats and the messages about sound. It knows no socket, and of devices only that they take orders.
 */

import { canDecode, canEncode, OPUS_RATE, OpusMicrophone, OpusReplies } from "./opus.js";
import { toFloats } from "./pcm.js";
import { REMEMBERED, ReplySound } from "./reply-sound.js";

/** @typedef {import("./jitter.js").Ack} Ack */
/** @typedef {import("./opus.js").RepliesHandlers} RepliesHandlers */
/** @typedef {import("./playback.js").Order} Order */
/** @typedef {import("./protocol.js").Format} Format */
/** @typedef {import("./protocol.js").ServerMessage} ServerMessage */

/**
 * `opus`: where both ends have it; `pcm16`: never that; `auto`: Opus over a network, PCM16 to a server on this machine,
 * where a tenth of the bytes buys nothing and costs some milliseconds.
 * @typedef {"auto" | "opus" | "pcm16"} CodecChoice
 */

/** What every server has. */
export const PCM16 = { input: { codec: "pcm16", rate: 16000 }, output: { codec: "pcm16", rate: 24000 } };

/** 24 kHz out is what voices have: a server then need not convert it first, which saves it a third of the work. */
const OPUS = { input: { codec: "opus", rate: OPUS_RATE }, output: { codec: "opus", rate: 24000 } };

/**
 * Return the formats to ask for each way, the best first.
 * @param {CodecChoice} choice
 * @param {string | URL} url of the server
 */
export async function wishes(choice, url) {
  if (choice === "pcm16" || (choice === "auto" && isHere(url))) return PCM16;
  const [encodes, decodes] = await Promise.all([canEncode(), canDecode()]);
  return {
    input: encodes ? [OPUS.input, PCM16.input] : PCM16.input,
    output: decodes ? [OPUS.output, PCM16.output] : PCM16.output,
  };
}

/** Whether a server runs on this machine, by its name. @param {string | URL} url */
function isHere(url) {
  try {
    const { hostname } = new URL(url, globalThis.location?.href);
    return /^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/.test(hostname);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return false; // not an address: the connection will say so
  }
}

/**
 * Return what takes a microphone's frames and gives their messages' sound, for PCM16 at once.
 * @param {Format} format
 * @param {(data: Uint8Array, last: boolean) => void} packet
 * @param {(error: unknown) => void} failed
 */
function makeMicrophone(format, packet, failed) {
  return format.codec === "opus" ? new OpusMicrophone(packet, failed) : new PcmMicrophone(format.rate, packet);
}

class PcmMicrophone {
  #frameBytes;
  #packet;

  /** @param {number} rate @param {(data: Uint8Array, last: boolean) => void} packet */
  constructor(rate, packet) {
    this.#frameBytes = 2 * (rate / 50);
    this.#packet = packet;
  }

  /** @param {Uint8Array<ArrayBuffer>} pcm @param {boolean} last */
  push(pcm, last) {
    if (pcm.length === this.#frameBytes) this.#packet(pcm, last); // others are of another rate, and on their way since
  }

  close() {}
}

/** PCM16's side of what `OpusReplies` is for Opus: everything at once. */
class PcmReplies {
  #handlers;

  /** @param {RepliesHandlers} handlers */
  constructor(handlers) {
    this.#handlers = handlers;
  }

  /** @param {number} epoch @param {number} offset @param {Uint8Array} data */
  push(epoch, offset, data) {
    const samples = toFloats(data);
    const end = offset + samples.length;
    this.#handlers.sound(epoch, offset, samples);
    return end;
  }

  /** @param {number} epoch @param {number} samples */
  finish(epoch, samples) {
    this.#handlers.done(epoch, samples);
  }

  /** @param {number} _epoch */
  interrupt(_epoch) {}

  restart() {}
}

/**
 * That the assistant was asked to be silent, and what has become of it.
 * @typedef {object} Silencing
 * @property {number} epoch the last reply that is silent here
 * @property {number} second of the microphone's sound at which it was
 * @property {boolean} said whether the server is told, or is about to be
 * @property {boolean} heeded
 * @property {boolean} doubted the line has broken since: the server may not know
 */

/** Both ways of a conversation's sound. */
export class Wire {
  /** @type {Loudspeaker | null} While one is open, in a conversation. */
  speaker = null;
  /** @type {ReturnType<typeof makeMicrophone> | null} In a conversation. */
  #microphone = null;
  /** @type {Format | null} */
  #output = null;
  #held = false; // whether a loudspeaker that is opened now is to wait
  #lastEpoch = 0; // of the conversation's replies
  #endedEpoch = 0; // of those that are over
  #thinking = false; // whether another is on its way
  /** @type {Silencing | null} The last one, unless the person wants to be answered since. */
  #silencing = null;
  #audio;
  #packet;
  #failed;

  /**
   * @param {import("./settings.js").AudioLike} audio
   * @param {(data: Uint8Array, last: boolean) => void} packet a frame is to be sent so
   * @param {(error: unknown) => void} failed
   */
  constructor(audio, packet, failed) {
    this.#audio = audio;
    this.#packet = packet;
    this.#failed = failed;
  }

  /** Begin a conversation, or take it up again. @param {import("./protocol.js").Ready} ready */
  begin(ready) {
    this.#held = ready.resumed && ready.state === "held";
    this.#thinking = ready.state === "thinking";
    if (this.#silencing !== null) this.#silencing.doubted = true;
    if (ready.resumed) this.speaker?.restart(this.#held);
    else {
      this.close();
      this.#lastEpoch = this.#endedEpoch = 0;
      this.#silencing = null;
      this.#audio.order({ do: "reset" });
    }
    this.#output = ready.output;
    this.openSpeaker();
    this.#microphone?.close();
    this.#microphone = makeMicrophone(ready.input, this.#packet, this.#failed);
    this.#audio.useRate(ready.input.rate);
  }

  /** Take it that the loudspeaker may be open now. */
  openSpeaker() {
    if (this.speaker !== null || this.#output === null || !this.#audio.rate) return;
    const order = this.#audio.order.bind(this.#audio);
    this.speaker = new Loudspeaker(this.#output, this.#audio.rate, order, this.#failed);
    if (this.#held) this.speaker.restart(true);
  }

  /** Take it that the server is told in other words to be silent, and that an answer is wanted. */
  overrule() {
    this.#silencing = null;
  }

  /** Return what tells whether no other reply was told of since now. */
  awaiting() {
    const epoch = this.#lastEpoch;
    return () => this.#lastEpoch === epoch;
  }

  /** Do what a message says about sound. @param {ServerMessage} message */
  take(message) {
    this.#judge(message);
    if ("epoch" in message) this.#lastEpoch = Math.max(this.#lastEpoch, message.epoch);
    if (message.name === "state") this.#thinking = message.state === "thinking";
    if (message.name === "interrupted" || message.name === "reply_done") {
      this.#endedEpoch = Math.max(this.#endedEpoch, message.epoch);
    }
    if (message.name === "hold") this.#held = true;
    else if (message.name === "release" || message.name === "interrupted") this.#held = false;
    this.speaker?.take(message);
  }

  /** See whether the server heeds what it was asked for, or has not heard it. @param {ServerMessage} message */
  #judge(message) {
    const asked = this.#silencing;
    if (asked === null || asked.heeded) return;
    if (message.name === "speech_started" || message.name === "speech_stopped") {
      asked.heeded = message.at_s > asked.second; // sound that was sent behind it arrived, so it did
    } else if ((message.name === "reply" || message.name === "audio") && asked.doubted && message.epoch > asked.epoch) {
      asked.epoch = message.epoch; // begun before it was asked to be silent, or not knowing of it
      this.speaker?.interrupt(message.epoch);
    }
  }

  /**
   * Take the microphone's next frame.
   * @param {Uint8Array<ArrayBuffer>} pcm
   * @param {boolean} last whether that is to be known when it is sent
   */
  hear(pcm, last) {
    this.#microphone?.push(pcm, last);
  }

  /**
   * Silence the assistant here, and keep it silent until the server is known to have heard of it.
   * @param {number} second of the microphone's sound that was sent last
   */
  interrupt(second) {
    if (this.#lastEpoch > 0) this.speaker?.interrupt(this.#lastEpoch);
    this.#silencing = { second, epoch: this.#lastEpoch, said: false, heeded: false, doubted: false };
  }

  /**
   * Return how the server is to be told of the last interruption; null if it is, or something else interrupts instead.
   * @returns {import("./outbox.js").Sending | null}
   */
  takeStop() {
    const asked = this.#silencing;
    if (asked === null || asked.said) return null;
    asked.said = true;
    const speaks = () => this.#thinking || this.#lastEpoch > this.#endedEpoch;
    const lost = () => this.#silencing === asked && !asked.heeded && speaks();
    return { hushes: true, lost, arrived: () => void (asked.heeded = true) };
  }

  /** Return acks as the server counts, without those of a conversation that is over. @param {Ack[]} acks */
  count(acks) {
    const { speaker } = this;
    if (speaker === null) return [];
    return acks
      .filter(({ epoch }) => epoch <= this.#lastEpoch)
      .map(({ epoch, samples, queued }) => {
        return { epoch, samples: speaker.position(epoch, samples), queued: speaker.duration(queued) };
      });
  }

  /** Ask where the loudspeaker stands, as the server counts. @returns {Promise<[number, number] | null>} */
  async position() {
    const position = await this.#audio.position();
    if (position === null || !position.epoch || this.speaker === null) return null;
    return [position.epoch, this.speaker.position(position.epoch, position.samples)];
  }

  /** Drop all that is under way. */
  close() {
    this.speaker?.close();
    this.#microphone?.close();
    this.speaker = this.#microphone = this.#output = null;
  }
}

/** Replies as the server sends them, for a loudspeaker. */
class Loudspeaker {
  #replies;
  #sound;
  #order;
  #scale; // decoded samples for each that the server counts
  /** @type {Map<number, number>} Of replies whose sound is complete, in decoded samples. */
  #lengths = new Map();

  /**
   * @param {Format} format
   * @param {number} rate the loudspeaker's own
   * @param {(order: Order, transfer?: Transferable[]) => void} order
   * @param {(error: unknown) => void} failed
   */
  constructor(format, rate, order, failed) {
    const isOpus = format.codec === "opus";
    const decodedRate = isOpus ? OPUS_RATE : format.rate;
    const sound = new ReplySound(decodedRate, rate);
    const handlers = {
      /** @type {RepliesHandlers["sound"]} */
      sound: (epoch, offset, samples) => {
        const piece = sound.push(epoch, offset, samples);
        order({ do: "push", ...piece }, [piece.samples.buffer]);
      },
      /** @type {RepliesHandlers["done"]} */
      done: (epoch, length) => {
        const { offset, samples } = sound.finish(epoch);
        const end = Math.ceil((length * rate) / decodedRate);
        const last = samples.slice(0, Math.max(0, end - offset));
        order({ do: "finish", epoch, offset, samples: last, end }, [last.buffer]);
      },
      failed,
    };
    this.#replies = isOpus ? new OpusReplies(handlers) : new PcmReplies(handlers);
    this.#sound = sound;
    this.#order = order;
    this.#scale = decodedRate / format.rate;
  }

  /** Do what a message says about sound. @param {ServerMessage} message */
  take(message) {
    switch (message.name) {
      case "audio": {
        const end = this.#replies.push(message.epoch, message.offset * this.#scale, message.data);
        const length = this.#lengths.get(message.epoch) ?? Infinity;
        // After a break the sound is told again, but not its end, which was told before.
        return end < length ? undefined : this.#replies.finish(message.epoch, length);
      }
      case "audio_done":
        this.#remember(message.epoch, message.samples * this.#scale);
        return this.#replies.finish(message.epoch, message.samples * this.#scale);
      case "hold":
      case "release":
        return this.#order({ do: message.name, epoch: message.epoch });
      case "interrupted":
        return this.interrupt(message.epoch);
      default:
        return undefined;
    }
  }

  /** @param {number} epoch @param {number} length */
  #remember(epoch, length) {
    this.#lengths.set(epoch, length);
    for (const old of this.#lengths.keys()) if (old <= epoch - REMEMBERED) this.#lengths.delete(old);
  }

  /** Be silent, and throw a reply away with all before it. @param {number} epoch */
  interrupt(epoch) {
    this.#replies.interrupt(epoch);
    this.#order({ do: "interrupt", epoch });
  }

  /** Take it that the connection was lost and is back: all that was not played comes again. @param {boolean} held */
  restart(held) {
    this.#replies.restart();
    this.#sound.restart();
    this.#order({ do: "restart", held });
  }

  /** Let it go. */
  close() {
    this.#replies.restart();
  }

  /**
   * Return how many samples were played, as the server counts, when so many of the loudspeaker's were.
   * @param {number} epoch
   * @param {number} samples
   */
  position(epoch, samples) {
    return Math.floor(this.#sound.position(epoch, samples) / this.#scale);
  }

  /** Return how many samples of the server's last as long. @param {number} samples */
  duration(samples) {
    return Math.ceil(this.#sound.duration(samples) / this.#scale);
  }
}
