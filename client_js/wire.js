/**
 * Sound between the wire and the devices, for every codec: choosing formats, frames to packets, messages about
 * replies to orders for a loudspeaker.
 *
 * Devices are only known as things that take orders.
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
 * `opus`: if both ends have it; `pcm16`: never Opus; `auto`: Opus over a network, PCM16 to a server on this machine,
 * where fewer bytes gain nothing and encoding costs some milliseconds.
 * @typedef {"auto" | "opus" | "pcm16"} CodecChoice
 */

/** The format that every server has. */
export const PCM16 = { input: { codec: "pcm16", rate: 16000 }, output: { codec: "pcm16", rate: 24000 } };

/** Voices are made at 24 kHz: a server that need not resample saves a third of its work. */
const OPUS = { input: { codec: "opus", rate: OPUS_RATE }, output: { codec: "opus", rate: 24000 } };

/**
 * Return the formats to ask for in each direction, the best first.
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

/** Return whether a server runs on this machine, by its name. @param {string | URL} url */
function isHere(url) {
  try {
    const { hostname } = new URL(url, globalThis.location?.href);
    return /^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/.test(hostname);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return false; // not an address: the connection will report it
  }
}

/**
 * Takes a packet to send: its bytes, whether it has the last frame before a release, and its number of frames.
 * @typedef {(data: Uint8Array, last: boolean, frames?: number) => void} PacketHandler
 */

/**
 * Return an encoder of microphone frames; the one for PCM16 answers at once, or with two frames more.
 * @param {Format} format
 * @param {PacketHandler} packet
 * @param {(error: unknown) => void} failed
 */
function makeMicrophone(format, packet, failed) {
  return format.codec === "opus" ? new OpusMicrophone(packet, failed) : new PcmMicrophone(format.rate, packet);
}

/** Frames that share a message while nothing can be interrupted: a message costs a server more than its sound. */
const GATHERED = 3;

class PcmMicrophone {
  #frameBytes;
  #packet;
  /** @type {Uint8Array[]} Frames that wait for others. */
  #gathered = [];

  /** @param {number} rate @param {PacketHandler} packet */
  constructor(rate, packet) {
    this.#frameBytes = 2 * (rate / 50);
    this.#packet = packet;
  }

  /** @param {Uint8Array<ArrayBuffer>} pcm @param {boolean} last @param {boolean} waits whether it may wait for others */
  push(pcm, last, waits) {
    if (pcm.length !== this.#frameBytes) return; // a late frame of another rate
    this.#gathered.push(pcm);
    if (!waits || last || this.#gathered.length === GATHERED) this.flush(last);
  }

  /** Send the frames that wait. @param {boolean} [last] */
  flush(last = false) {
    const frames = this.#gathered.splice(0);
    if (!frames.length) return;
    const data = frames.length === 1 ? frames[0] : new Uint8Array(frames.length * this.#frameBytes);
    if (frames.length > 1) frames.forEach((frame, place) => data.set(frame, place * this.#frameBytes));
    this.#packet(data, last, frames.length);
  }

  close() {
    this.#gathered = [];
  }
}

/** For PCM16 what `OpusReplies` is for Opus: everything at once. */
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
 * A request to the assistant to be silent, and its progress.
 * @typedef {object} Silencing
 * @property {number} epoch the last reply that is silent here
 * @property {number} second of the microphone's sound at the time of the request
 * @property {boolean} said whether the server was told, or is about to be
 * @property {boolean} heeded
 * @property {boolean} doubted the line has broken since: the server may not know
 */

/** Both directions of a conversation's sound. */
export class Wire {
  /** @type {Loudspeaker | null} Set while one is open in a conversation. */
  speaker = null;
  /** @type {ReturnType<typeof makeMicrophone> | null} Set during a conversation. */
  #microphone = null;
  /** @type {Format | null} */
  #output = null;
  #held = false; // whether a loudspeaker that opens now begins on hold
  #lastEpoch = 0; // of all replies of the conversation
  #endedEpoch = 0; // the last one that is over
  #thinking = false; // whether another reply is on its way
  /** @type {Silencing | null} The last request, unless the person has asked for an answer since. */
  #silencing = null;
  #audio;
  #packet;
  #failed;

  /**
   * @param {import("./settings.js").AudioLike} audio
   * @param {PacketHandler} packet called with each packet to send
   * @param {(error: unknown) => void} failed
   */
  constructor(audio, packet, failed) {
    this.#audio = audio;
    this.#packet = packet;
    this.#failed = failed;
  }

  /** Begin or resume a conversation. @param {import("./protocol.js").Ready} ready */
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

  /** Note that the loudspeaker may be open now. */
  openSpeaker() {
    if (this.speaker !== null || this.#output === null || !this.#audio.rate) return;
    const order = this.#audio.order.bind(this.#audio);
    this.speaker = new Loudspeaker(this.#output, this.#audio.rate, order, this.#failed);
    if (this.#held) this.speaker.restart(true);
  }

  /** Note that another message silences the server, and that an answer is wanted. */
  overrule() {
    this.#silencing = null;
  }

  /** Return a function that tells whether no other reply has begun since now. */
  awaiting() {
    const epoch = this.#lastEpoch;
    return () => this.#lastEpoch === epoch;
  }

  /** Carry out what a message says about sound. @param {ServerMessage} message */
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

  /** Find out whether the server has received the request to be silent. @param {ServerMessage} message */
  #judge(message) {
    const asked = this.#silencing;
    if (asked === null || asked.heeded) return;
    if (message.name === "speech_started" || message.name === "speech_stopped") {
      asked.heeded = message.at_s > asked.second; // sound that was sent after it arrived, so it did too
    } else if ((message.name === "reply" || message.name === "audio") && asked.doubted && message.epoch > asked.epoch) {
      asked.epoch = message.epoch; // begun before the request, or before the server knew of it
      this.speaker?.interrupt(message.epoch);
    }
  }

  /**
   * Take the microphone's next frame.
   * @param {Uint8Array<ArrayBuffer>} pcm
   * @param {boolean} last whether to report when it is sent
   * @param {boolean} [waits] whether it may wait for the next two frames; Opus has a packet for each frame
   */
  hear(pcm, last, waits = false) {
    this.#microphone?.push(pcm, last, waits);
  }

  /** Send the frames that wait for others. */
  flush() {
    this.#microphone?.flush();
  }

  /**
   * Silence the assistant here, and keep it silent until the server is known to have received the request.
   * @param {number} second the last second of the microphone's sound that was sent
   */
  interrupt(second) {
    if (this.#lastEpoch > 0) this.speaker?.interrupt(this.#lastEpoch);
    this.#silencing = { second, epoch: this.#lastEpoch, said: false, heeded: false, doubted: false };
  }

  /**
   * Return how to tell the server of the last interruption; null if it knows, or another message interrupts instead.
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

  /** Return acks in the server's samples, without those of a conversation that is over. @param {Ack[]} acks */
  count(acks) {
    const { speaker } = this;
    if (speaker === null) return [];
    return acks
      .filter(({ epoch }) => epoch <= this.#lastEpoch)
      .map(({ epoch, samples, queued }) => {
        return { epoch, samples: speaker.position(epoch, samples), queued: speaker.duration(queued) };
      });
  }

  /** Ask for the loudspeaker's position, in the server's samples. @returns {Promise<[number, number] | null>} */
  async position() {
    const position = await this.#audio.position();
    if (position === null || !position.epoch || this.speaker === null) return null;
    return [position.epoch, this.speaker.position(position.epoch, position.samples)];
  }

  /** Drop everything under way. */
  close() {
    this.speaker?.close();
    this.#microphone?.close();
    this.speaker = this.#microphone = this.#output = null;
  }
}

/** Plays the server's replies on a loudspeaker. */
class Loudspeaker {
  #replies;
  #sound;
  #order;
  #scale; // decoded samples for each sample of the server's count
  /** @type {Map<number, number>} Lengths of complete replies, in decoded samples. */
  #lengths = new Map();

  /**
   * @param {Format} format
   * @param {number} rate the loudspeaker's
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

  /** Carry out what a message says about sound. @param {ServerMessage} message */
  take(message) {
    switch (message.name) {
      case "audio": {
        const end = this.#replies.push(message.epoch, message.offset * this.#scale, message.data);
        const length = this.#lengths.get(message.epoch) ?? Infinity;
        // After a break the server repeats the sound, but not its end, which came before.
        return end < length ? undefined : this.#replies.finish(message.epoch, length);
      }
      case "audio_done":
        this.#remember(message.epoch, message.samples * this.#scale);
        return this.#replies.finish(message.epoch, message.samples * this.#scale);
      case "duck":
        return this.#order({ do: "lower", epoch: message.epoch, gain: message.gain });
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

  /** Be silent; drop a reply and all before it. @param {number} epoch */
  interrupt(epoch) {
    this.#replies.interrupt(epoch);
    this.#order({ do: "interrupt", epoch });
  }

  /** Note that the connection was lost and is back: all that was not played comes again. @param {boolean} held */
  restart(held) {
    this.#replies.restart();
    this.#sound.restart();
    this.#order({ do: "restart", held });
  }

  /** Release the loudspeaker. */
  close() {
    this.#replies.restart();
  }

  /**
   * Return how many of the server's samples were played when so many of the loudspeaker's were.
   * @param {number} epoch
   * @param {number} samples
   */
  position(epoch, samples) {
    return Math.floor(this.#sound.position(epoch, samples) / this.#scale);
  }

  /** Return how many of the server's samples last as long as these of the loudspeaker's. @param {number} samples */
  duration(samples) {
    return Math.ceil(this.#sound.duration(samples) / this.#scale);
  }
}
