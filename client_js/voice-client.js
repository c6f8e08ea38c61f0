/**
 * A conversation with a voxlane server, for pages: connect, talk, interrupt, type; everything else is events.
 *
 * It joins the connection, the sound and the state, which are independent of each other. It does not use the DOM.
 */

import { BrowserAudio } from "./audio.js";
import { Connection } from "./connection.js";
import { browserEnvironment } from "./environment.js";
import { fit, VoiceError } from "./errors.js";
import { NO_FIGURES, VoiceTarget } from "./events.js";
import { toFloats } from "./pcm.js";
import { say } from "./protocol.js";
import { keyOf, Memory, merge, Settings } from "./settings.js";
import { ConversationState } from "./state.js";
import { Toolbox, toolConfig } from "./tools.js";
import { PCM16, Wire, wishes } from "./wire.js";

/** @typedef {import("./protocol.js").Ready} Ready */
/** @typedef {import("./settings.js").VoiceOptions} VoiceOptions */
/** @typedef {import("./audio.js").MicrophoneOptions} MicrophoneOptions */

const FRAME_MS = 20;
const FRAMES_PER_S = 1000 / FRAME_MS;

/** One conversation; `VoiceEvents` lists its events. */
export class VoiceClient extends VoiceTarget {
  state = new ConversationState();
  /** @type {Ready | null} The server's last description of itself and of the conversation. */
  ready = null;
  muted = false;
  /** Whether a turn lasts from press to release: `turns.mode` is `manual`. */
  pushToTalk = false;
  pressed = false;
  /** @type {import("./events.js").Figures} */
  figures = { ...NO_FIGURES };

  #options;
  #settings;
  #toolbox;
  #memory;
  #now;
  #connection;
  #audio;
  #codec;
  #wire;
  #ending = false; // the button was released, and its last frame has not come yet
  #closings = 0; // counts closings of the microphone: earlier requests to open it are void
  #lifted = false; // the button has lifted a mute, which comes back with the end of its turn
  #level = { input: 0, output: 0 };
  /** @type {((piece: import("./events.js").SoundPiece) => void) | null} */
  #recorder = null;
  /** @type {{ resolve: (ready: Ready) => void, reject: (error: VoiceError) => void } | null} */
  #connecting = null;
  #poke = () => this.#connection.poke();

  /** @param {VoiceOptions} options */
  constructor(options) {
    super();
    const environment = options.environment ?? browserEnvironment();
    const makeAudio = options.audio ?? ((handlers, rate) => new BrowserAudio(handlers, rate, options.worklets));
    this.#options = options;
    this.#toolbox = new Toolbox(options.tools ?? {}, {
      send: (make) => this.#connection.send(make(this.#connection.frameBytes), { lost: () => true }),
      ask: (call) => this.tell("toolcall", call),
      failed: (error) => this.tell("fault", error),
    });
    this.#settings = new Settings(options);
    this.#memory = new Memory(options.storage, String(options.url));
    this.#now = environment.now;
    this.#codec = options.codec ?? "auto";
    this.#audio = makeAudio(this.#audioHandlers(), PCM16.input.rate);
    this.#wire = new Wire(this.#audio, this.#sendSound.bind(this), this.#leaveOpus.bind(this));
    this.#connection = new Connection(String(options.url), () => this.#hello(), this.#handlers(), environment);
  }

  /** The connection's status. */
  get status() {
    return this.#connection.status;
  }

  /** Whether the microphone is open. */
  get listening() {
    return this.#audio.listening;
  }

  /** Whether the browser keeps the loudspeaker silent until the person clicks: call `listen` from that click. */
  get silenced() {
    return this.#audio.silenced;
  }

  // ---- beginning and ending

  /**
   * Connect, and resume the stored conversation if there is one.
   * @returns {Promise<Ready>} rejects with a VoiceError that says why not
   */
  connect() {
    if (this.status !== "idle" && this.status !== "closed") return Promise.reject(new VoiceError("connected_already"));
    /** @type {Promise<Ready>} */
    const done = new Promise((resolve, reject) => void (this.#connecting = { resolve, reject }));
    globalThis.addEventListener?.("online", this.#poke);
    this.#connection.start(this.#memory.read());
    return done;
  }

  /** Close the microphone and the loudspeaker, say good-bye, and wait for `over`. */
  async close() {
    const isOver = this.status === "idle" || this.status === "closed";
    const over = isOver || new Promise((resolve) => this.addEventListener("over", resolve, { once: true }));
    this.#closings += 1;
    this.#connection.close();
    this.#wire.close();
    await this.#audio.close();
    this.#tellMicrophone();
    await over;
  }

  // ---- sound

  /** Open the loudspeaker alone: call it from a click or a key. */
  async listen() {
    await this.#audio.openSpeaker();
    this.#wire.openSpeaker();
  }

  /** Open the loudspeaker and a microphone: call it from a click or a key. @param {MicrophoneOptions} [microphone] */
  async talk(microphone) {
    const closings = this.#closings;
    await this.listen();
    if (closings !== this.#closings) throw new VoiceError("microphone_closed");
    await this.#audio.openMicrophone(microphone);
    this.#applyMute();
  }

  /** Close the microphone; the conversation and the loudspeaker stay. */
  hush() {
    this.#closings += 1;
    this.#audio.closeMicrophone();
    this.#wire.flush();
    this.#endTurn(); // the turn's last frame will not come
    this.#tellMicrophone();
  }

  /** Play through another device; return whether the browser can. @param {string} deviceId */
  useSpeaker(deviceId) {
    return this.#audio.useSpeaker(deviceId);
  }

  /** Send silence instead of sound, or sound again. @param {boolean} muted */
  mute(muted) {
    this.muted = muted;
    this.#lifted = false;
    this.#applyMute();
  }

  /**
   * Get both sides' sound in pieces of 20 ms while the devices are open: what the microphone sends, silence while it is
   * muted, and what the loudspeaker plays. Another call replaces the listener, null ends it.
   * @param {((piece: import("./events.js").SoundPiece) => void) | null} listener
   */
  record(listener) {
    this.#recorder = listener;
    this.#audio.record(listener !== null);
  }

  // ---- what a person can do

  /** Silence the assistant at once; the server learns exactly what was heard. */
  async interrupt() {
    this.#wire.interrupt(this.#connection.sentSeconds);
    await this.#audio.position(); // what was played is acked by then
    this.#stop();
  }

  #stop() {
    const stop = this.#wire.takeStop();
    if (stop !== null && !this.#connection.send(say.stop(), stop)) this.#wire.overrule(); // there is no conversation
  }

  /** Type a turn; it interrupts. @param {string} text */
  say(text) {
    this.#send(fit(() => say.text(text)), { survives: true, ordered: true, ...this.state.awaiting(text) });
    this.#wire.overrule();
    this.state.typed(this.#now());
  }

  /** Let a turn last from press to release instead of from sound to silence, or the reverse. @param {boolean} on */
  setPushToTalk(on) {
    if (this.pressed) this.release();
    this.pushToTalk = on;
    this.configure({ turns: { mode: on ? "manual" : "auto" } });
    this.#applyMute();
  }

  /** Press the button: from now on all sound is a turn, even if muted before. It interrupts. */
  press() {
    if (this.pressed) return;
    this.#endTurn(); // of the last press, if its last frame never came
    this.#wire.flush(); // what was heard before is not of this turn
    this.#send(say.start());
    this.#wire.overrule();
    this.pressed = true;
    this.#lifted = this.muted;
    this.muted = false;
    this.#applyMute();
  }

  /** Release the button: the turn ends with the sound that is under way. */
  release() {
    if (!this.pressed) return;
    this.pressed = false;
    this.#ending = true;
    if (!this.#audio.listening || this.#audio.silenced || this.status !== "open") this.#endTurn(); // no frame will come
    this.#tellMicrophone();
  }

  /** Ask for a reply, if the conversation gives none by itself. */
  respond() {
    this.#stop(); // the server gives no reply while there is one
    const awaits = this.#wire.awaiting();
    this.#send(say.respond(), { ordered: true, lost: () => awaits() && this.state.state === "listening" });
    this.#wire.overrule();
  }

  /** Change the configuration; other keys stay. @param {import("./settings.js").Config} config */
  configure(config) {
    const asked = say.config(merge(this.#settings.asked, config));
    if (asked.length > this.#connection.frameBytes) throw new VoiceError("too_long");
    if (this.status === "open") this.#send(say.config(config)); // otherwise `#begin` or the hello sends it
    this.#settings.ask(config);
  }

  /** Give the assistant other tools. @param {import("./tools.js").Tools} tools */
  setTools(tools) {
    this.configure({ tools: toolConfig(tools) });
    this.#toolbox.tools = tools;
  }

  // ---- the connection

  async #hello() {
    const formats = await wishes(this.#codec, this.#options.url);
    return { ...formats, config: this.#settings.greet(), key: keyOf(this.#options) };
  }

  /** @returns {import("./connection.js").Handlers} */
  #handlers() {
    return {
      message: (message) => this.#take(message),
      ready: (ready, how) => this.#begin(ready, how),
      status: (change) => this.tell("status", change),
      over: (ending) => this.#over(ending),
      position: () => this.#wire.position(),
      pong: (roundTripMs) => {
        this.figures.roundTripMs = roundTripMs;
        this.state.catchUp();
      },
    };
  }

  /** @param {Ready} ready @param {"first" | "resumed" | "anew"} how */
  #begin(ready, how) {
    this.ready = ready;
    this.#wire.begin(ready);
    this.state.begin(ready, how, this.#connection.lastSeq);
    const unsaid = this.#settings.begin(ready.resumed);
    if (unsaid !== null) this.#send(say.config(unsaid));
    this.#follow(ready.config);
    const hears = ready.resumed && ready.state === "hearing";
    if (this.pressed && !hears) this.#send(say.start()); // it may have been lost with the line, so it may be sent twice
    // The release was lost with the line, or with the page before this one: the button is no longer held.
    if (hears && this.pushToTalk && !this.pressed) this.#send(say.end());
    this.#store();
    this.tell("ready", { ready, how });
    this.#connecting?.resolve(ready);
    this.#connecting = null;
  }

  /** @param {import("./connection.js").Ending} ending */
  #over(ending) {
    globalThis.removeEventListener?.("online", this.#poke);
    this.#memory.forget();
    if (ending.closeCode === 4400) this.#settings.refused();
    this.pressed = this.#ending = false;
    this.#closings += 1;
    this.#wire.close();
    this.#audio.order({ do: "reset" });
    this.#audio.closeMicrophone();
    this.#applyMute();
    this.#connecting?.reject(new VoiceError(ending.code, ending.message));
    this.#connecting = null;
    this.state.end();
    this.tell("over", ending);
    this.tell("change", this.state);
  }

  /** @param {Uint8Array<ArrayBuffer>} frame @param {import("./connection.js").Sending} [how] */
  #send(frame, how) {
    if (!fit(() => this.#connection.send(frame, how))) throw new VoiceError("not_connected");
  }

  #store() {
    const { token, at } = this.#connection;
    if (token) this.#memory.write({ token, lastSeq: this.state.checkpoint, at });
  }

  // ---- messages

  /** @param {import("./protocol.js").ServerMessage} message */
  #take(message) {
    this.#wire.take(message);
    const before = this.state.checkpoint;
    this.state.take(message);
    if (this.state.checkpoint !== before) this.#store();
    this.#toolbox.take(message);
    if (message.name === "configured") {
      if (this.ready !== null) this.ready.config = message.config;
      this.#settings.answered();
      this.#follow(message.config);
    }
    this.tell("message", message);
    if (message.name !== "pong") this.tell("change", this.state);
    if (message.name === "error") this.tell("fault", new VoiceError(message.code, message.message));
  }

  /** Match push-to-talk to the configuration's turns. @param {import("./settings.js").Config} config */
  #follow(config) {
    const mode = merge(config, this.#settings.asked).turns?.mode;
    if (mode === undefined || this.pushToTalk === (mode === "manual")) return;
    this.pushToTalk = mode === "manual";
    this.#applyMute();
  }

  // ---- devices

  /** @returns {import("./audio.js").AudioHandlers} */
  #audioHandlers() {
    return {
      frame: (frame) => this.#hear(frame),
      acks: (acks) => this.#acknowledge(acks),
      begins: (epoch) => {
        this.state.sounded(epoch, this.#now());
        this.tell("change", this.state);
      },
      figures: ({ level, playing: _playing, held: _held, ...figures }) => {
        const droppedMs = this.#connection.droppedFrames * FRAME_MS;
        Object.assign(this.figures, figures, { droppedMs, outputLatencyMs: this.#audio.outputLatencyMs });
        this.#level.output = level;
        this.tell("figures", this.figures);
        if (!this.#audio.listening) this.tell("level", { ...this.#level });
      },
      played: (samples, rate) => this.#recorder?.({ role: "assistant", samples, rate }),
      silenced: (silenced) => this.tell("sound", { silenced }),
      microphoneLost: () => {
        this.hush();
        this.tell("fault", new VoiceError("microphone_lost"));
      },
    };
  }

  /** @param {import("./capture.js").Frame} frame */
  #hear({ pcm, level, onset, quiet }) {
    this.#recorder?.({ role: "user", samples: toFloats(pcm), rate: (pcm.length / 2) * FRAMES_PER_S });
    this.#wire.hear(pcm, this.#ending, quiet === true && this.#calm);
    this.#level.input = level;
    if (onset && (this.#options.ducking ?? true)) this.#audio.order({ do: "duck" });
    this.tell("level", { ...this.#level });
  }

  /** Whether there is nothing to interrupt, and no turn: then the server need not hear of quiet frames at once. */
  get #calm() {
    return this.state.state === "listening" && !this.pressed && !this.#ending;
  }

  /** @type {import("./wire.js").PacketHandler} */
  #sendSound(data, last, frames = 1) {
    const sent = this.#connection.sendAudio(data, (frames * FRAME_MS) / 1000, frames);
    if (sent) this.state.captured(this.#connection.sentSeconds, this.#now());
    if (last) this.#endTurn();
  }

  /** Tell the server that the button was released, unless that was done. */
  #endTurn() {
    if (!this.#ending) return;
    this.#ending = false;
    this.#applyMute();
    this.#connection.send(say.end(), { lost: () => !this.pressed && this.state.state === "hearing" });
  }

  #applyMute() {
    if (this.#lifted && !this.pressed && !this.#ending) {
      this.muted = true;
      this.#lifted = false;
    }
    this.#audio.mute(this.muted || (this.pushToTalk && !this.pressed && !this.#ending));
    this.#tellMicrophone();
  }

  #tellMicrophone() {
    const { muted, listening, pushToTalk, pressed } = this;
    if (!listening) this.#level.input = 0;
    this.tell("microphone", { muted, listening, pushToTalk, pressed });
  }

  /** Continue without Opus in another conversation: within one, formats cannot change. @param {unknown} cause */
  #leaveOpus(cause) {
    this.#codec = "pcm16";
    this.tell("fault", new VoiceError("codec_failed", undefined, { cause }));
    this.#connection.renew();
  }

  /** @param {import("./jitter.js").Ack[]} acks */
  #acknowledge(acks) {
    for (const { epoch, samples, queued } of this.#wire.count(acks)) {
      this.#connection.sendNow(say.played(epoch, samples, queued));
      this.state.played(epoch, samples);
    }
    this.tell("change", this.state);
  }
}
