/**
 * The browser's side of sound: one AudioContext at its own rate, a microphone, a loudspeaker, and their worklets.
 *
 * It opens, connects and closes them, and names in one word what is missing.
 */

import { microphoneError, VoiceError } from "./errors.js";

/** @typedef {import("./capture.js").Frame} Frame */
/** @typedef {import("./jitter.js").Ack} Ack */
/** @typedef {import("./playback.js").Order} Order */

/**
 * @typedef {object} SpeakerFigures
 * @property {number} bufferMs sound that waits to be played
 * @property {number} targetMs buffered sound with which a reply begins
 * @property {number} underruns
 * @property {number} starvedMs silence caused by underruns
 * @property {number} level loudness, 0 to 1
 * @property {boolean} playing
 * @property {boolean} held
 */

/**
 * @typedef {object} AudioHandlers
 * @property {(frame: Frame) => void} frame
 * @property {(acks: Ack[]) => void} acks positions in the context's samples
 * @property {(epoch: number) => void} begins
 * @property {(figures: SpeakerFigures) => void} figures
 * @property {() => void} microphoneLost
 * @property {(samples: Float32Array, rate: number) => void} played while it is recorded: all that goes to the sound card
 * @property {(silenced: boolean) => void} silenced the browser has suspended the sound, or resumed it
 */

/**
 * @typedef {object} MicrophoneOptions
 * @property {string} [deviceId]
 * @property {boolean} [echoCancellation]
 * @property {boolean} [noiseSuppression]
 * @property {boolean} [autoGainControl]
 */

/** Frames a second: 20 ms each. */
const FRAMES_PER_S = 50;

/** How long to wait for the worklet's position; a worklet that does not run never answers. */
const POSITION_MS = 200;

/** A microphone and a loudspeaker. */
export class BrowserAudio {
  /** @type {AudioContext | null} */
  #context = null;
  /** @type {AudioContext | null} The microphone's own, where it cannot share the loudspeaker's. */
  #microphoneContext = null;
  /** @type {AudioWorkletNode | null} */
  #speaker = null;
  /** @type {Promise<void> | null} */
  #opening = null;
  /** @type {AudioWorkletNode | null} */
  #capture = null;
  /** @type {MediaStreamAudioSourceNode | null} */
  #source = null;
  /** @type {MediaStream | null} */
  #stream = null;
  #muted = false;
  #recorded = false; // whether the loudspeaker's sound is wanted back
  #openings = 0; // counts openings and closings of the microphone: a stale opening is recognised
  /** @type {((position: { epoch: number, samples: number } | null) => void)[]} */
  #asking = [];
  #handlers;
  #wireRate;
  #worklets;

  /**
   * @param {AudioHandlers} handlers
   * @param {number} wireRate the rate of the microphone's frames
   * @param {string | URL} [worklets] the address of the worklets' folder, if it is not this module's
   */
  constructor(handlers, wireRate, worklets = import.meta.url) {
    this.#handlers = handlers;
    this.#wireRate = wireRate;
    this.#worklets = new URL(worklets, globalThis.location?.href);
  }

  /** The loudspeaker's rate; 0 while it is closed. */
  get rate() {
    return this.#speaker === null ? 0 : (this.#context?.sampleRate ?? 0);
  }

  /** Whether the microphone is open. */
  get listening() {
    return this.#capture !== null;
  }

  /** How long a sample takes from the worklet to the loudspeaker, as far as the browser knows. */
  get outputLatencyMs() {
    return 1000 * ((this.#context?.outputLatency || 0) + (this.#context?.baseLatency || 0));
  }

  /** Whether the browser keeps the loudspeaker silent until the person clicks. */
  get silenced() {
    return this.#context !== null && this.#context.state !== "running"; // iOS has other states than "suspended"
  }

  /** Open the loudspeaker. Call it from a click or a key press: otherwise browsers keep it silent. */
  async openSpeaker() {
    // On a page without HTTPS the name may exist and its value be missing.
    if (!("AudioWorkletNode" in globalThis) || globalThis.isSecureContext === false) throw missing("no_worklet");
    const opening = (this.#opening ??= this.#makeSpeaker());
    try {
      await opening;
    } catch (error) {
      if (this.#opening !== opening) throw new VoiceError("sound_closed", undefined, { cause: error });
      this.#opening = null;
      throw new VoiceError("sound_failed", undefined, { cause: error });
    }
    for (const context of [this.#context, this.#microphoneContext]) if (context !== null) wake(context);
  }

  async #makeSpeaker() {
    const context = this.#context ?? this.#makeContext();
    await context.audioWorklet.addModule(new URL("./playback-worklet.js", this.#worklets));
    if (context !== this.#context) throw new VoiceError("sound_closed"); // another context may be open by now
    const speaker = new AudioWorkletNode(context, "voxlane-playback", { numberOfInputs: 0, outputChannelCount: [1] });
    speaker.port.onmessage = ({ data }) => this.#hear(data);
    speaker.connect(context.destination);
    this.#speaker = speaker;
    if (this.#recorded) this.order({ do: "record", on: true });
  }

  #makeContext() {
    const context = new AudioContext({ latencyHint: "interactive" });
    context.onstatechange = () => {
      if (context !== this.#context) return;
      // A telephone call, another device or sleep. While Safari says "interrupted", resuming fails and does harm.
      if (context.state === "suspended") wake(context);
      this.#handlers.silenced(this.silenced);
    };
    this.#context = context;
    return context;
  }

  /**
   * Open the microphone, or change to another one.
   * @param {MicrophoneOptions} [options]
   */
  async openMicrophone(options = {}) {
    if (!navigator.mediaDevices) throw missing("microphone_missing");
    const { deviceId, echoCancellation = true, noiseSuppression = true, autoGainControl = true } = options;
    const wish = { echoCancellation, noiseSuppression, autoGainControl, channelCount: 1 };
    const audio = deviceId ? { ...wish, deviceId: { exact: deviceId } } : wish;
    const opening = ++this.#openings;
    const stream = await navigator.mediaDevices.getUserMedia({ audio }).catch((error) => {
      throw microphoneError(error);
    });
    this.#claim(opening, stream);
    this.closeMicrophone();
    this.#openings = opening;
    this.#stream = stream;
    const [track] = stream.getAudioTracks();
    track.onended = () => {
      this.closeMicrophone();
      this.#handlers.microphoneLost();
    };
    try {
      const source = await this.#attach(stream, track);
      this.#claim(opening, stream);
      this.#record(source);
    } catch (error) {
      this.#claim(opening, stream);
      this.closeMicrophone();
      throw new VoiceError("sound_failed", undefined, { cause: error });
    }
  }

  /** Start taking frames from a microphone. @param {MediaStreamAudioSourceNode} source */
  #record(source) {
    const processorOptions = { rate: this.#wireRate, frameSamples: this.#wireRate / FRAMES_PER_S };
    const capture = new AudioWorkletNode(source.context, "voxlane-capture", { numberOfOutputs: 0, processorOptions });
    capture.port.onmessage = ({ data }) => this.#handlers.frame(data);
    capture.port.postMessage({ muted: this.#muted });
    source.connect(capture);
    this.#source = source;
    this.#capture = capture;
  }

  /**
   * Release a microphone that is no longer wanted: a person may take minutes to allow it.
   * @param {number} opening
   * @param {MediaStream} stream
   */
  #claim(opening, stream) {
    if (opening === this.#openings) return;
    for (const track of stream.getTracks()) track.stop();
    throw new VoiceError("microphone_closed");
  }

  /** @param {MediaStream} stream @param {MediaStreamTrack} track */
  async #attach(stream, track) {
    const module = new URL("./capture-worklet.js", this.#worklets);
    const context = this.#context ?? this.#makeContext();
    try {
      const source = context.createMediaStreamSource(stream);
      await context.audioWorklet.addModule(module);
      return source;
    } catch (error) {
      // Firefox does not join a microphone to a context of another rate, and does not tell the microphone's: that is
      // what a context has which is made now.
      if (!(error instanceof DOMException) || error.name !== "NotSupportedError") throw error;
      const { sampleRate } = track.getSettings();
      const own = new AudioContext({ sampleRate, latencyHint: "interactive" });
      own.onstatechange = () => own.state === "suspended" && own === this.#microphoneContext && wake(own);
      this.#microphoneContext = own;
      await own.audioWorklet.addModule(module);
      return own.createMediaStreamSource(stream);
    }
  }

  /** Close the microphone; the browser's recording sign goes out. */
  closeMicrophone() {
    this.#openings += 1;
    for (const track of this.#stream?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.#source?.disconnect();
    this.#capture?.port.postMessage({ over: true });
    if (this.#capture !== null) this.#capture.port.onmessage = null;
    void this.#microphoneContext?.close();
    this.#stream = this.#source = this.#capture = this.#microphoneContext = null;
  }

  /** Play through another device, where the browser can; return whether it could. @param {string} deviceId */
  async useSpeaker(deviceId) {
    /** @type {(AudioContext & { setSinkId?: (id: string) => Promise<void> }) | null} */
    const context = this.#context;
    if (typeof context?.setSinkId !== "function") return false;
    await context.setSinkId(deviceId);
    wake(context); // a context is suspended when its device is unplugged
    return true;
  }

  /** Change the rate of the microphone's frames. @param {number} rate */
  useRate(rate) {
    if (rate === this.#wireRate) return;
    this.#wireRate = rate;
    this.#capture?.port.postMessage({ rate, frameSamples: rate / FRAMES_PER_S, muted: this.#muted });
  }

  /** Send silence instead of sound, or sound again. @param {boolean} muted */
  mute(muted) {
    this.#muted = muted;
    this.#capture?.port.postMessage({ muted });
  }

  /** Have everything back that goes to the loudspeaker, or no longer. @param {boolean} on */
  record(on) {
    this.#recorded = on;
    this.order({ do: "record", on });
  }

  /** Give the loudspeaker an order. @param {Order} order @param {Transferable[]} [transfer] */
  order(order, transfer = []) {
    this.#speaker?.port.postMessage(order, transfer);
  }

  /** Return the loudspeaker's position, null if it does not answer; what was played before is acked by then. */
  position() {
    /** @type {Promise<{ epoch: number, samples: number } | null>} */
    const answer = new Promise((resolve) => {
      if (this.#speaker === null) return resolve(null);
      this.#asking.push(resolve);
      setTimeout(() => resolve(null), POSITION_MS);
      return this.order({ do: "position" });
    });
    return answer;
  }

  /** Close everything. */
  async close() {
    this.closeMicrophone();
    this.#speaker?.disconnect();
    if (this.#speaker !== null) this.#speaker.port.onmessage = null; // late messages are not the next speaker's
    const context = this.#context;
    this.#context = this.#speaker = this.#opening = null;
    for (const answer of this.#asking.splice(0)) answer(null);
    if (context !== null && context.state !== "closed") await context.close();
  }

  /** @param {any} data */
  #hear(data) {
    if (data.acks) this.#handlers.acks(data.acks);
    else if (data.begins) this.#handlers.begins(data.begins);
    else if (data.figures) this.#handlers.figures(data.figures);
    else if (data.played) this.#handlers.played(data.played, this.rate);
    else if (data.position) this.#asking.shift()?.(data.position);
  }
}

/** Resume a context. Not awaited: without a click the promise may never settle. @param {AudioContext} context */
function wake(context) {
  context.resume().catch(() => undefined); // the context was closed, or a telephone call goes on: its state shows it
}

/** Return the error for a missing feature: most browsers withhold it from a page without HTTPS. @param {string} code */
function missing(code) {
  return new VoiceError(globalThis.isSecureContext ? code : "insecure_origin");
}
