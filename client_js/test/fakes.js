/** A clock, sockets and a sound card that tests control by hand. */

import { decode } from "../msgpack.js";
import { frame, readyMap } from "./support.js";

/** A clock that tests advance. */
export class FakeClock {
  time = 0;
  #timers = new Map();
  #next = 1;

  now = () => this.time;

  setTimer = (then, ms) => {
    this.#timers.set(this.#next, { at: this.time + ms, then });
    return this.#next++;
  };

  clearTimer = (timer) => {
    this.#timers.delete(timer);
  };

  /** Advance the clock and run due timers in their order; promises run in between. */
  async pass(ms) {
    const end = this.time + ms;
    for (;;) {
      await settle();
      const due = [...this.#timers].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at)[0];
      if (due === undefined) break;
      this.#timers.delete(due[0]);
      this.time = Math.max(this.time, due[1].at);
      due[1].then();
    }
    this.time = end;
    await settle();
  }

  get waiting() {
    return this.#timers.size;
  }
}

/** Let settled promises run their handlers. */
export async function settle() {
  for (let turn = 0; turn < 20; turn++) await null;
}

export class FakeSocket {
  binaryType = "blob";
  bufferedAmount = 0;
  onopen = null;
  onmessage = null;
  onclose = null;
  sent = [];
  closed = false;

  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
  }

  send(data) {
    this.sent.push(decode(data));
  }

  close() {
    this.closed = true;
  }

  /** The server's side. */
  open() {
    this.onopen?.({});
  }

  tell(...parts) {
    this.onmessage?.({ data: frame(...parts) });
  }

  drop(code = 1006) {
    this.onclose?.({ code });
  }

  /** Return the client's messages of a name. */
  said(name) {
    return this.sent.filter(([first]) => first === name);
  }
}

/** A clock, random numbers and a network that keeps every socket. */
export class FakeWorld {
  clock = new FakeClock();
  sockets = [];
  chance = 1;
  network = (url, protocols) => new FakeSocket(url, protocols);

  get environment() {
    return {
      open: (url, protocols) => {
        this.sockets.push(this.network(url, protocols));
        return this.socket;
      },
      now: this.clock.now,
      setTimer: this.clock.setTimer,
      clearTimer: this.clock.clearTimer,
      random: () => this.chance,
    };
  }

  get socket() {
    return this.sockets.at(-1);
  }

  /** Accept the newest socket and greet it. */
  async greet(seq = 1, values = {}) {
    this.socket.open();
    await settle();
    this.socket.tell("ready", seq, readyMap(values));
    await settle();
  }
}

/** A sound card: orders are kept, tests set the positions. */
export class FakeAudio {
  rate = 0;
  listening = false;
  silenced = false;
  outputLatencyMs = 12;
  orders = [];
  muted = [];
  standing = null;

  constructor(handlers) {
    this.handlers = handlers;
  }

  async openSpeaker() {
    this.rate = 48000;
  }

  async openMicrophone() {
    this.listening = true;
  }

  closeMicrophone() {
    this.listening = false;
  }

  async useSpeaker() {
    return true;
  }

  useRate(rate) {
    this.wireRate = rate;
  }

  mute(muted) {
    this.muted.push(muted);
  }

  record(on) {
    this.recorded = on;
  }

  order(order) {
    this.orders.push(order);
  }

  async position() {
    return this.standing;
  }

  async close() {
    this.rate = 0;
    this.listening = false;
  }
}

/** A stand-in for sessionStorage. */
export class FakeStorage {
  values = new Map();

  getItem(key) {
    return this.values.get(key) ?? null;
  }

  setItem(key, value) {
    this.values.set(key, value);
  }

  removeItem(key) {
    this.values.delete(key);
  }
}
