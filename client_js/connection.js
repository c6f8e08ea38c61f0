/**
 * One conversation over as many WebSockets as it takes: hello, sequence numbers, coming back, giving up.
 *
 *     connecting ──open──▶ greeting ──ready──▶ open ──close──▶ waiting ──delay──▶ connecting
 *                                               │                 └─ too long, or a close that is final ─▶ closed
 *
 * Sockets, time and random numbers are passed in, so that it runs in a test as in a browser. It handles the messages
 * about the connection and passes all messages on.
 */

import { MsgpackError } from "./msgpack.js";
import { Outbox } from "./outbox.js";
import { describeClose, FRAME_BYTES, judgeClose, parseMessage, ProtocolError, say, SUBPROTOCOL } from "./protocol.js";

export { browserEnvironment } from "./environment.js";

/** @typedef {import("./protocol.js").ServerMessage} ServerMessage */
/** @typedef {import("./protocol.js").Ready} Ready */
/** @typedef {import("./protocol.js").Hello} Hello */
/** @typedef {"idle" | "connecting" | "greeting" | "open" | "waiting" | "closed"} Status */
/** @typedef {"attempt" | "retry" | "ping" | "bye"} TimerName */
/** @typedef {import("./protocol.js").ErrorMessage} ErrorMessage */
/** @typedef {import("./protocol.js").Ending} Ending */
/** @typedef {import("./environment.js").SocketLike} SocketLike */
/** @typedef {import("./environment.js").Environment} Environment */

/** @typedef {import("./outbox.js").Sending} Sending */
/** @typedef {{ status: Status, resuming: boolean, attempt: number, delayMs: number }} StatusChange */

/**
 * @typedef {object} Handlers
 * @property {(message: ServerMessage) => void} message every message once, except sound that the server repeats
 * @property {(change: StatusChange) => void} status
 * @property {(ready: Ready, how: "first" | "resumed" | "anew") => void} ready before the message itself
 * @property {(ending: Ending) => void} over
 * @property {() => Promise<[epoch: number, samples: number] | null>} position the player's position
 * @property {(roundTripMs: number) => void} pong
 */

/** Waits before attempts to reconnect, the last repeated; a random part of up to half is taken off. */
const DELAYS_MS = [100, 250, 500, 1000, 2000, 4000];

/** Time for an attempt to reach `ready`: the server waits five seconds for the hello. */
const ATTEMPT_MS = 8000;

/** How long to try to reconnect before the person is asked. */
const GIVE_UP_MS = 5 * 60_000;

/** How long a line must hold to count as good: one that breaks sooner is a failed attempt. */
const HELD_MS = 5000;

/** How often the round trip is measured, and how long a ping may stay unanswered before the line counts as dead. */
const PING_MS = 3000;
const DEAD_MS = 7000;

/** Sound that may wait in the socket before more is dropped: one second, because later sound is useless. */
const BUFFERED_BYTES = 4_000; // at least this many bytes, because packets of silence are small

/** Time for the server's good-bye. */
const BYE_MS = 2000;

/** Return an address that tells a balancer which server has the conversation. @param {string} url @param {string} at */
function named(url, at) {
  return `${url}${url.includes("?") ? "&" : "?"}at=${encodeURIComponent(at)}`;
}

/** A conversation's connection. */
export class Connection {
  /** @type {Status} */
  status = "idle";
  token = "";
  /** The name of the conversation's server at its balancer. */
  at = "";
  /** The last sequence number that came; `ready` does not count, because repeated messages after it are older. */
  lastSeq = 0;
  /** Frames of sound that were dropped because the line was too slow or broken. */
  droppedFrames = 0;
  /** Seconds of sound that the server has got, as far as is known: sound lost with a broken line does not count. */
  sentSeconds = 0;
  /** Largest message that the server accepts. */
  frameBytes = FRAME_BYTES;
  /** Messages that never came: always 0 unless the server has a bug. */
  missing = 0;

  #url;
  #hello;
  #handlers;
  #environment;
  /** @type {SocketLike | null} */
  #socket = null;
  /** @type {ErrorMessage | null} The last message on this connection, if it was an error. */
  #error = null;
  #handedOver = false; // whether the last message on this connection was `go_away`
  #met = false; // whether there was ever a conversation
  #attempt = 0;
  #lostAt = 0; // when the last good line broke
  #readyAt = 0;
  #good = false; // whether this line has held
  #closing = false;
  #readySeq = 0; // the number of this connection's `ready`; older messages are repetitions
  /** @type {Record<TimerName, any>} */
  #timers = { attempt: null, retry: null, ping: null, bye: null };
  #ping = { mark: 0, sentAt: -1, answered: true, sentSeconds: 0 };
  #heardAt = 0;
  #outbox = new Outbox((frame) => this.#write(frame));

  /**
   * @param {string} url
   * @param {() => Hello | Promise<Hello>} hello the message that begins a conversation
   * @param {Handlers} handlers
   * @param {Environment} environment
   */
  constructor(url, hello, handlers, environment) {
    this.#url = url;
    this.#hello = hello;
    this.#handlers = handlers;
    this.#environment = environment;
  }

  /**
   * Connect; resume a conversation if its token is given.
   * @param {{ token: string, lastSeq: number, at?: string }} [past]
   */
  start(past) {
    if (this.status !== "idle" && this.status !== "closed") throw new Error("it is started already");
    this.token = past?.token ?? "";
    this.at = past?.at ?? "";
    this.lastSeq = past?.lastSeq ?? 0;
    this.#met = this.#closing = false;
    this.#attempt = 0;
    this.#lostAt = this.#environment.now();
    this.#connect();
  }

  /** Try at once instead of waiting: the browser says that the network is back. */
  poke() {
    if (this.status !== "waiting") return;
    this.#clear("retry");
    this.#connect();
  }

  /**
   * Send a message, or keep it until there is a connection; return false if neither is possible.
   * @param {Uint8Array<ArrayBuffer>} frame
   * @param {Sending} [how]
   */
  send(frame, how = {}) {
    if (frame.length > this.frameBytes) throw new RangeError(`a message of more than ${this.frameBytes} bytes`);
    if (this.status === "idle" || this.status === "closed") return false;
    return this.#outbox.send({ ...how, frame }, this.status === "open" ? this.#ping.mark : null);
  }

  /** Send a message that is useless later; return whether it was sent. @param {Uint8Array<ArrayBuffer>} frame */
  sendNow(frame) {
    return this.status === "open" && this.#write(frame);
  }

  /**
   * Send sound; return false if it was dropped.
   * @param {Uint8Array} data
   * @param {number} seconds
   * @param {number} [frames]
   */
  sendAudio(data, seconds, frames = 1) {
    const most = Math.max(BUFFERED_BYTES, data.length / seconds);
    if (this.status === "open" && this.#socket !== null && this.#socket.bufferedAmount <= most) {
      this.sentSeconds += seconds;
      return this.#write(say.audio(data));
    }
    if (this.#met) this.droppedFrames += frames;
    return false;
  }

  /** Leave the conversation and begin another: its formats cannot be kept. */
  renew() {
    this.token = "";
    if (this.status === "open") this.#write(say.bye());
    if (this.status === "open" || this.status === "greeting") this.#lost(1012); // else the next hello begins another
  }

  /** Say good-bye and close. */
  close() {
    if (this.status === "idle" || this.status === "closed" || this.#closing) return;
    this.#closing = true;
    if (this.status !== "open") return this.#finish({ code: "closed", message: "", closeCode: 1000 });
    this.#write(say.bye());
    this.#set("bye", () => this.#finish({ code: "closed", message: "", closeCode: 1000 }), BYE_MS);
    return undefined;
  }

  // ---- connecting

  #connect() {
    this.#error = null;
    this.#handedOver = false;
    /** @type {SocketLike} */
    let socket;
    try {
      socket = this.#environment.open(this.token ? named(this.#url, this.at) : this.#url, [SUBPROTOCOL]);
    } catch (error) {
      return this.#finish({ code: "unreachable", message: String(error), closeCode: 1006 }); // not an address
    }
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => void this.#greet(socket);
    socket.onmessage = (event) => this.#receive(event.data);
    socket.onclose = (event) => this.#lost(event.code);
    this.#set("attempt", () => this.#lost(1006), ATTEMPT_MS);
    return this.#change("connecting"); // last: a handler may close the connection
  }

  /** @param {SocketLike} socket */
  async #greet(socket) {
    this.#change("greeting");
    try {
      const hello = await this.#hello();
      const played = (this.token && (await this.#handlers.position())) || undefined;
      if (socket !== this.#socket) return; // the line was lost meanwhile
      const past = { key: hello.key, resume: this.token, last_seq: this.lastSeq, played };
      socket.send(say.hello(this.token ? past : hello));
    } catch (error) {
      // The page's key or its configuration is wrong: another attempt would fail too.
      const message = `The conversation could not be begun: ${error}`;
      if (socket === this.#socket) this.#finish({ code: "hello_failed", message, closeCode: 1006 });
    }
  }

  /** @param {Extract<ServerMessage, { name: "ready" }>} message */
  #greeted(message) {
    const { ready, seq } = message;
    this.#clear("attempt");
    const how = ready.resumed ? "resumed" : this.#met ? "anew" : "first";
    if (!ready.resumed) this.lastSeq = this.sentSeconds = 0;
    this.token = ready.token;
    this.at = ready.at;
    this.#readySeq = seq;
    this.frameBytes = ready.limits.frame_bytes;
    this.#met = true;
    this.#readyAt = this.#environment.now();
    this.#good = false;
    this.#ping.answered = true;
    this.#outbox.begin(ready.resumed);
    this.#change("open");
    this.#handlers.ready(ready, how);
    this.#handlers.message(message);
    this.#outbox.release(this.#ping.mark);
    this.#sendPing();
  }

  // ---- messages

  /** @param {unknown} data */
  #receive(data) {
    this.#heardAt = this.#environment.now();
    /** @type {ServerMessage} */
    let message;
    try {
      if (!(data instanceof ArrayBuffer)) throw new ProtocolError("a text frame");
      message = parseMessage(new Uint8Array(data));
    } catch (error) {
      if (!(error instanceof ProtocolError || error instanceof MsgpackError)) throw error;
      return this.#finish({ code: "protocol", message: error.message, closeCode: 4400 });
    }
    this.#error = message.name === "error" ? message : null;
    this.#handedOver = message.name === "go_away";
    if (message.name === "ready") return this.#greeted(message);
    if (message.name === "pong") this.#pong(message);
    if (!this.#isNews(message)) return undefined;
    return this.#handlers.message(message);
  }

  /** Count a message; return false if it came before. @param {ServerMessage} message */
  #isNews({ name, seq }) {
    if (seq === 0) return true;
    const known = seq <= this.lastSeq;
    const expected = Math.max(this.lastSeq, this.#readySeq) + 1;
    if (seq > expected) this.missing += seq - expected;
    this.lastSeq = Math.max(this.lastSeq, seq);
    return !known || name === "audio"; // the player skips what it has played
  }

  #sendPing() {
    const { now } = this.#environment;
    const { sentAt, answered } = this.#ping;
    if (!answered && now() - sentAt > DEAD_MS && this.#heardAt < sentAt) return this.#lost(1006);
    if (answered) {
      this.#ping = { mark: this.#ping.mark + 1, sentAt: now(), answered: false, sentSeconds: this.sentSeconds };
      this.#write(say.ping(this.#ping.mark));
    }
    this.#set("ping", () => this.#sendPing(), PING_MS);
    return undefined;
  }

  /** @param {Extract<ServerMessage, { name: "pong" }>} message */
  #pong(message) {
    if (message.mark !== this.#ping.mark || this.#ping.answered) return;
    if (message.seq && message.seq < this.#readySeq) return; // the answer to a ping of the page before this one
    this.#ping.answered = true;
    this.sentSeconds += message.audio_s - this.#ping.sentSeconds;
    this.#outbox.answered(message.mark);
    const now = this.#environment.now();
    if (now - this.#readyAt >= HELD_MS) {
      this.#good = true;
      this.#attempt = 0;
    }
    this.#handlers.pong(now - this.#ping.sentAt);
  }

  /** @param {Uint8Array<ArrayBuffer>} frame */
  #write(frame) {
    if (this.#socket === null) return false;
    this.#socket.send(frame);
    return true;
  }

  // ---- closing

  /** @param {number} code */
  #lost(code) {
    const wasOpen = this.status === "open";
    const error = this.#error;
    const resuming = !wasOpen && this.token !== "";
    const handedOver = this.#handedOver;
    this.#drop();
    if (this.#closing) return this.#finish({ code: "closed", message: "", closeCode: code });
    const verdict = judgeClose(code, { afterError: error !== null, resuming, handedOver });
    if (verdict === "done") return this.#finish({ code: "done", message: "", closeCode: code });
    if (verdict === "failed") return this.#finish(describeClose(code, error));
    if (verdict === "resume" && !this.#met && !this.token) return this.#finish(describeClose(code, error));
    if (verdict === "anew") this.token = "";
    if (handedOver && code === 1012) this.at = ""; // that server goes away
    if (wasOpen && this.#good) this.#lostAt = this.#environment.now();
    return this.#wait(code, error, handedOver && code === 1012);
  }

  /** @param {number} code @param {ErrorMessage | null} error @param {boolean} atOnce another server waits for us */
  #wait(code, error, atOnce) {
    const { now, random } = this.#environment;
    if (now() - this.#lostAt > GIVE_UP_MS) {
      return this.#finish({ ...describeClose(code, error), code: "gave_up" });
    }
    const asked = (error?.retry_after_s ?? 0) * 1000;
    const usual = DELAYS_MS[Math.min(this.#attempt, DELAYS_MS.length - 1)] * (0.5 + random() / 2);
    const delayMs = atOnce ? 0 : Math.max(usual, asked * (1 + random() / 2));
    this.#attempt += 1;
    this.#set("retry", () => this.#connect(), delayMs);
    return this.#change("waiting", delayMs);
  }

  /** Forget the socket: on a dead line a close may never be answered. */
  #drop() {
    this.#clear("attempt");
    this.#clear("ping");
    const socket = this.#socket;
    this.#socket = null;
    if (socket === null) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }

  /** @param {Ending} ending */
  #finish(ending) {
    this.#drop();
    this.#clear("retry");
    this.#clear("bye");
    this.#outbox.clear();
    this.token = "";
    this.status = "closed";
    this.#handlers.over(ending);
    if (this.status === "closed") this.#change("closed"); // otherwise a handler has begun another conversation
  }

  // ---- helpers

  /** @param {Status} status @param {number} [delayMs] */
  #change(status, delayMs = 0) {
    this.status = status;
    this.#handlers.status({ status, resuming: this.token !== "", attempt: this.#attempt, delayMs });
  }

  /** @param {TimerName} name @param {() => void} then @param {number} ms */
  #set(name, then, ms) {
    this.#clear(name);
    this.#timers[name] = this.#environment.setTimer(then, ms);
  }

  /** @param {TimerName} name */
  #clear(name) {
    if (this.#timers[name] !== null) this.#environment.clearTimer(this.#timers[name]);
    this.#timers[name] = null;
  }
}
