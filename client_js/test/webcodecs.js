/** WebCodecs that work when a test says so; a packet holds its number, a sample that of its place. */

/** Samples of a packet. */
export const PACKET = 960;

class Codec {
  static supported = true;
  static made = [];
  state = "unconfigured";
  work = [];

  static async isConfigSupported(config) {
    if (this.supported === null) throw new TypeError("what is that?");
    return { supported: this.supported, config };
  }

  constructor({ output, error }) {
    Object.assign(this, { output, error });
    this.constructor.made.push(this);
  }

  configure(config) {
    this.config = config;
    this.state = "configured";
  }

  flush() {
    return new Promise((resolve, reject) => this.work.push({ resolve, reject }));
  }

  close() {
    if (this.state === "closed") throw new DOMException("closed already", "InvalidStateError");
    this.state = "closed";
    for (const { reject } of this.work.splice(0)) reject?.(new DOMException("closed", "AbortError"));
  }

  /** Do this many pieces of the waiting work. */
  step(count = Infinity) {
    for (const { input, resolve } of this.work.splice(0, count)) {
      if (resolve) resolve();
      else this.output(this.make(input));
    }
  }

  die(name = "EncodingError") {
    this.state = "closed";
    this.error(new DOMException("it is dead", name));
  }
}

class FakeEncoder extends Codec {
  static made = [];

  get encodeQueueSize() {
    return this.work.length;
  }

  encode({ timestamp, data }) {
    this.work.push({ input: { timestamp, data: data.slice(0, 4) } });
  }

  make({ timestamp, data }) {
    return { timestamp, byteLength: data.length, copyTo: (target) => target.set(data) };
  }
}

class FakeDecoder extends Codec {
  static made = [];
  static rate = 48000;
  kept = 0; // outputs that were not closed

  decode({ type, data }) {
    if (this.state !== "configured" || type !== "key") throw new DOMException("not now", "InvalidStateError");
    this.work.push({ input: data });
  }

  make(data) {
    const first = data[0] * PACKET;
    this.kept += 1;
    return {
      sampleRate: FakeDecoder.rate,
      numberOfFrames: PACKET,
      copyTo: (target, { format }) => {
        if (format !== "f32-planar") throw new TypeError(format);
        target.forEach((_, place) => (target[place] = first + place));
      },
      close: () => (this.kept -= 1),
    };
  }
}

/** Install the codecs as globals; return them and a function that removes them. */
export function install() {
  FakeEncoder.made.length = FakeDecoder.made.length = 0;
  FakeEncoder.supported = FakeDecoder.supported = true;
  FakeDecoder.rate = 48000;
  const AudioData = class {
    constructor(values) {
      Object.assign(this, values);
    }
    close() {}
  };
  const EncodedAudioChunk = class {
    constructor(values) {
      Object.assign(this, values);
    }
  };
  const names = { AudioEncoder: FakeEncoder, AudioDecoder: FakeDecoder, AudioData, EncodedAudioChunk };
  Object.assign(globalThis, names);
  const remove = () => Object.keys(names).forEach((name) => delete globalThis[name]);
  return { encoders: FakeEncoder.made, decoders: FakeDecoder.made, FakeEncoder, FakeDecoder, remove };
}
