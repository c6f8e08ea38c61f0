/**
 * Opus through the browser's own codecs (WebCodecs): frames of 20 ms to packets, and replies back to samples.
 *
 * Both work asynchronously and answer in order. Sample numbers are at 48 kHz. An encoder that dies after it has worked
 * is replaced: browsers take the codecs of background pages away. Any other failure is reported once; after that
 * there is no more sound from here.
 */

/** Opus decodes to this rate whatever was encoded, and encodes best from it. */
export const OPUS_RATE = 48000;

const FRAME_US = 20_000;
const FRAME_SAMPLES = OPUS_RATE / 50;
const FRAME_BYTES = 2 * FRAME_SAMPLES;

/** The encoder's look-ahead, by which a decoder's output begins late: 6.5 ms. */
const DELAY_SAMPLES = 312;

/** Bit rate: a speech recogniser does as well with it as with PCM16. */
const BITRATE = 24_000;

/** Frames that may wait for the encoder before sound is dropped: one second. */
const MOST_WAITING = 50;

const STREAM = { codec: "opus", sampleRate: OPUS_RATE, numberOfChannels: 1 };
const ENCODING = {
  ...STREAM,
  bitrate: BITRATE,
  opus: { application: "voip", signal: "voice", frameDuration: FRAME_US, usedtx: false },
};

/** Return whether this browser can encode a microphone. */
export const canEncode = () => supports(globalThis.AudioEncoder, ENCODING);

/** Return whether this browser can decode packets. */
export const canDecode = () => supports(globalThis.AudioDecoder, STREAM);

/**
 * @template Config
 * @param {{ isConfigSupported(config: Config): Promise<{ supported?: boolean }> } | undefined} kind
 * @param {Config} config
 */
async function supports(kind, config) {
  if (kind === undefined) return false;
  // A browser that throws here does not have it.
  return kind.isConfigSupported(config).then(({ supported }) => supported === true, () => false);
}

/** Encodes a microphone's frames. */
export class OpusMicrophone {
  /** @type {AudioEncoder | null} Made with the first frame. */
  #encoder = null;
  #worked = false; // whether this encoder has made a packet
  #over = false;
  #time = 0; // time of the next frame, in microseconds
  #lastTime = Infinity; // time of the last frame of a turn
  #packet;
  #failed;

  /**
   * @param {(data: Uint8Array, last: boolean) => void} packet
   * @param {(error: unknown) => void} failed
   */
  constructor(packet, failed) {
    this.#packet = packet;
    this.#failed = failed;
  }

  /**
   * Take the next frame: PCM16 at 48 kHz. A frame of another length has another rate and is dropped.
   * @param {Uint8Array<ArrayBuffer>} pcm
   * @param {boolean} last whether to report when its packet is made
   */
  push(pcm, last) {
    if (this.#over || pcm.length !== FRAME_BYTES) return undefined;
    try {
      this.#encoder ??= this.#make();
    } catch (error) {
      return this.#fail(null, error); // the browser has none
    }
    if (this.#encoder.state !== "configured" || this.#encoder.encodeQueueSize >= MOST_WAITING) return undefined;
    if (last) this.#lastTime = Math.min(this.#lastTime, this.#time);
    const { sampleRate, numberOfChannels } = STREAM;
    const numberOfFrames = pcm.length / 2;
    const sound = { format: /** @type {const} */ ("s16"), sampleRate, numberOfChannels, numberOfFrames };
    const frame = new AudioData({ ...sound, timestamp: this.#time, data: pcm });
    this.#time += FRAME_US;
    this.#encoder.encode(frame);
    return frame.close();
  }

  /** Nothing waits here: each frame has a packet of its own. */
  flush() {}

  /** Stop; drop what is under way. */
  close() {
    this.#over = true;
    if (this.#encoder !== null && this.#encoder.state !== "closed") this.#encoder.close();
    this.#encoder = null;
  }

  #make() {
    this.#worked = false;
    const encoder = new AudioEncoder({
      output: (chunk) => this.#take(encoder, chunk),
      error: (error) => this.#fail(encoder, error),
    });
    encoder.configure(ENCODING);
    return encoder;
  }

  /** @param {AudioEncoder} encoder @param {EncodedAudioChunk} chunk */
  #take(encoder, chunk) {
    if (encoder !== this.#encoder) return;
    this.#worked = true;
    const data = new Uint8Array(chunk.byteLength);
    chunk.copyTo(data);
    const last = chunk.timestamp + FRAME_US / 2 >= this.#lastTime;
    if (last) this.#lastTime = Infinity;
    this.#packet(data, last);
  }

  /** @param {AudioEncoder | null} encoder @param {unknown} error */
  #fail(encoder, error) {
    if (encoder !== this.#encoder) return;
    this.#encoder = null; // the next frame gets a new one
    if (this.#worked) return;
    this.#over = true;
    this.#failed(error);
  }
}

/**
 * @typedef {object} RepliesHandlers
 * @property {(epoch: number, offset: number, samples: Float32Array) => void} sound without gaps, reply after reply;
 *   the padding of the last packets may be part of it
 * @property {(epoch: number, length: number) => void} done comes after the last sound of a complete reply
 * @property {(error: unknown) => void} failed
 */

/** Decodes replies' packets. Each reply has a decoder of its own; no reply overtakes the one before. */
export class OpusReplies {
  /** @type {Reply[]} Oldest first; only the first one's sound is passed on, the others wait for its end. */
  #replies = [];
  #handlers;
  #over = false;
  #past = 0; // the last epoch that is over: its late packets must not create a decoder

  /** @param {RepliesHandlers} handlers */
  constructor(handlers) {
    this.#handlers = handlers;
  }

  /**
   * Take the next packet of a reply.
   * @param {number} epoch
   * @param {number} offset of its first sample
   * @param {Uint8Array} packet may be empty, if the message carries only words
   * @returns {number} the end of the sound that it completes
   */
  push(epoch, offset, packet) {
    if (!packet.length) return offset;
    if (!this.#over && epoch > this.#past) this.#open(epoch).push(offset, packet);
    return offset + FRAME_SAMPLES - DELAY_SAMPLES;
  }

  /**
   * Note that a reply is complete.
   * @param {number} epoch
   * @param {number} samples that it has
   */
  finish(epoch, samples) {
    if (this.#over || epoch <= this.#past) return;
    const reply = this.#open(epoch);
    reply.length = samples;
    reply.finish();
  }

  /** Drop a reply and all before it. @param {number} epoch */
  interrupt(epoch) {
    this.#past = Math.max(this.#past, epoch);
    for (const reply of this.#replies) if (reply.epoch <= epoch) reply.close();
    this.#replies = this.#replies.filter((reply) => reply.epoch > epoch);
    this.#deliver();
  }

  /** Drop everything; it may come again. */
  restart() {
    this.interrupt(Infinity);
    this.#past = 0;
  }

  /** @param {number} epoch */
  #open(epoch) {
    const known = this.#replies.find((reply) => reply.epoch === epoch);
    if (known) return known;
    this.#replies.at(-1)?.finish(); // a reply that broke off is not waited for
    const reply = new Reply(epoch, () => this.#deliver(), (error) => this.#fail(error));
    this.#replies.push(reply);
    return reply;
  }

  #deliver() {
    while (this.#replies.length) {
      const [reply] = this.#replies;
      for (const { offset, samples } of reply.take()) this.#handlers.sound(reply.epoch, offset, samples);
      if (!reply.ended) return;
      this.#replies.shift();
      if (reply.length < 0) continue;
      this.#past = Math.max(this.#past, reply.epoch);
      this.#handlers.done(reply.epoch, reply.length);
    }
  }

  /** @param {unknown} error */
  #fail(error) {
    this.#over = true;
    this.restart();
    this.#handlers.failed(error);
  }
}

/** One reply in its decoder. */
class Reply {
  /** Its length in samples, once the server has told it. */
  length = -1;
  /** Whether all its sound was taken out. */
  ended = false;
  /** @type {AudioDecoder | null} Made with the first packet. */
  #decoder = null;
  /** @type {{ offset: number, samples: Float32Array }[]} */
  #sound = [];
  #time = 0; // time of the next packet, in microseconds
  #offset = 0; // number of the next sample that comes out
  #late = DELAY_SAMPLES; // samples still to be dropped from the decoder's output
  #closed = false;
  #news;
  #failed;

  /** @param {number} epoch @param {() => void} news @param {(error: unknown) => void} failed */
  constructor(epoch, news, failed) {
    this.epoch = epoch;
    this.#news = news;
    this.#failed = failed;
  }

  /** @param {number} offset @param {Uint8Array} packet */
  push(offset, packet) {
    try {
      this.#decoder ??= this.#make(offset);
    } catch (error) {
      return this.#failed(error); // the browser has none
    }
    if (this.#decoder.state !== "configured") return undefined; // its error comes through its handler
    this.#decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: this.#time, data: packet }));
    this.#time += FRAME_US;
    return undefined;
  }

  /** Note that no packet follows. */
  finish() {
    if (this.#decoder === null) return this.#conclude();
    if (this.#decoder.state !== "configured") return undefined;
    // It rejects when the decoder is closed, or with an error that the handler gets too.
    return void this.#decoder.flush().then(() => this.#conclude(), () => undefined);
  }

  /** Return the sound that has come since the last call. */
  take() {
    return this.#sound.splice(0);
  }

  close() {
    this.#closed = true;
    if (this.#decoder !== null && this.#decoder.state !== "closed") this.#decoder.close();
  }

  /** @param {number} offset */
  #make(offset) {
    this.#offset = offset;
    const decoder = new AudioDecoder({
      output: (data) => this.#hear(data),
      error: (error) => !this.#closed && this.#failed(error),
    });
    decoder.configure(STREAM);
    return decoder;
  }

  /** @param {AudioData} data */
  #hear(data) {
    if (this.#closed) return data.close();
    if (data.sampleRate !== OPUS_RATE) {
      data.close();
      return this.#failed(new RangeError(`a decoder that gives ${data.sampleRate} Hz`));
    }
    const whole = new Float32Array(data.numberOfFrames);
    data.copyTo(whole, { planeIndex: 0, format: "f32-planar" });
    data.close();
    const samples = whole.subarray(this.#late);
    this.#late = Math.max(0, this.#late - whole.length);
    if (samples.length) this.#sound.push({ offset: this.#offset, samples });
    this.#offset += samples.length;
    return this.#news();
  }

  #conclude() {
    if (this.#closed || this.ended) return;
    this.close();
    this.ended = true;
    this.#news();
  }
}
