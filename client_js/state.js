/**
 * A conversation as a page shows it: its state, captions with the part that was heard, the latency of each turn.
 *
 * Pure: messages, positions and times go in, lines come out.
 */

import { AwaitedTexts } from "./awaited.js";

/** @typedef {import("./protocol.js").ServerMessage} ServerMessage */
/** @typedef {import("./protocol.js").Ready} Ready */
/** @typedef {import("./protocol.js").StateName} StateName */
/** @typedef {import("./protocol.js").SpokenWord} SpokenWord */

/**
 * One line of the captions. In the person's, `heard` is settled and `unheard` may still change. In the assistant's,
 * `heard` was played and `unheard` was not: not yet, or never if the line is interrupted.
 * @typedef {object} Line
 * @property {number} id
 * @property {"user" | "assistant"} role
 * @property {"live" | "done" | "interrupted" | "failed"} status
 * @property {string} heard
 * @property {string} unheard
 */

/**
 * A turn's latency in milliseconds after the person's last sound, or after the text was typed; -1: did not happen.
 * `heard_ms` is measured here: when the first sample of the reply went to the loudspeaker.
 * @typedef {object} TurnLatency
 * @property {number} turn
 * @property {number} turn_end_ms
 * @property {number} words_ms
 * @property {number} first_token_ms
 * @property {number} first_sample_ms
 * @property {number} first_frame_ms
 * @property {number} heard_ms
 */

/** Lines and turns that are kept: an evening's conversation, so that no page grows without limit. */
const MOST_LINES = 1000;
const MOST_TURNS = 200;

/** How late sound may come before some must have been dropped, and how long the earliest time is remembered. */
const MOVED_MS = 250;
const EARLIEST_MS = 10_000;

const UNKNOWN = {
  turn_end_ms: -1, words_ms: -1, first_token_ms: -1, first_sample_ms: -1, first_frame_ms: -1, heard_ms: -1,
};

/** The text of one reply and the places of its words. Characters are code points, as the server counts them. */
class Reply {
  /** @type {string[]} */
  characters = [];
  heard = 0; // characters
  #lastOffset = -1;
  /** @type {{ begin: number, middle: number, end: number }[]} Samples, and the character after the word. */
  #words = [];

  /** @param {Line} line @param {number} turn */
  constructor(line, turn) {
    this.line = line;
    this.turn = turn;
  }

  /** @param {string} text */
  append(text) {
    this.characters.push(...text);
    this.show();
  }

  /** @param {number} offset @param {SpokenWord[]} words */
  place(offset, words) {
    if (offset <= this.#lastOffset) return; // repeated after a break
    this.#lastOffset = offset;
    for (const [start, end, startSample, endSample] of words) {
      // Several spoken words belong to one written word, such as "$4.50": it counts as heard with half of them.
      const before = this.#words.at(-1);
      const begin = before !== undefined && start < before.end ? before.begin : startSample;
      if (begin !== startSample) this.#words.pop();
      this.#words.push({ begin, middle: Math.floor((begin + endSample + 1) / 2), end });
    }
  }

  /** Note how many samples were played: a word counts as heard with half of its sound. @param {number} samples */
  played(samples) {
    for (const { middle, end } of this.#words) if (middle <= samples) this.heard = Math.max(this.heard, end);
    this.show();
  }

  show() {
    this.line.heard = this.characters.slice(0, this.heard).join("");
    this.line.unheard = this.characters.slice(this.heard).join("");
  }
}

/** One conversation's state; `lines` and `turns` are in order and may be read at any time. */
export class ConversationState {
  /** @type {StateName} */
  state = "listening";
  /** @type {Line[]} */
  lines = [];
  /** @type {TurnLatency[]} */
  turns = [];
  /** The last sequence number up to which the history is complete: a reloaded page continues there. */
  checkpoint = 0;

  #nextId = 1;
  /** @type {Map<number, Reply>} By epoch: replies that are not over. */
  #replies = new Map();
  /** @type {Map<number, Line>} By turn: lines that are not settled. */
  #speech = new Map();
  /** @type {Map<number, number>} By turn: when the person fell silent. */
  #origins = new Map();
  #ended = 0; // the last epoch that is over
  #typedAt = -1;
  #microphoneZero = NaN; // when the first sound of the server's count was captured
  #zeros = { before: 0, recent: 0, since: 0 }; // the earliest estimates of it, recent and older
  #begun = false;
  #fromHistory = 0; // lines that came from the history
  #catchesUp = false; // whether the server may still repeat what those lines say
  #awaited = new AwaitedTexts();

  /**
   * Begin with the server's history.
   * @param {Ready} ready
   * @param {"first" | "resumed" | "anew"} how
   * @param {number} [lastSeq] the next messages come after this number
   */
  begin(ready, how, lastSeq = 0) {
    this.state = ready.state;
    this.#awaited.begin();
    if (how === "resumed" && this.#begun) return; // the server repeats what was missed
    this.#begun = true;
    this.#breakOff(() => "failed");
    this.#origins.clear();
    this.#microphoneZero = NaN;
    this.turns = [];
    this.#ended = 0;
    this.checkpoint = lastSeq;
    if (this.lines.length) return;
    for (const { role, content } of ready.history) {
      if ((role === "user" || role === "assistant") && content) this.#add(role, "done").heard = content;
    }
    this.#fromHistory = this.lines.length;
    this.#catchesUp = true;
  }

  /** Note that a ping was answered: the server has repeated all that was missed. */
  catchUp() {
    this.#catchesUp = false;
    this.#awaited.catchUp();
  }

  /** Note that nothing more comes: lines under way were cut. */
  end() {
    this.state = "listening";
    this.#breakOff(({ role }) => (role === "assistant" ? "interrupted" : "done"));
  }

  /** @param {(line: Line) => Line["status"]} statusOf the new status of a line that is under way */
  #breakOff(statusOf) {
    this.#replies.clear();
    this.#speech.clear();
    for (const line of this.lines.filter(({ status }) => status === "live")) {
      line.status = statusOf(line);
      if (!line.heard && !line.unheard) this.#remove(line);
    }
  }

  /**
   * Note when a second of the microphone's sound was captured.
   * @param {number} second as the server counts them
   * @param {number} now
   */
  captured(second, now) {
    const zero = now - second * 1000;
    const { recent, since } = this.#zeros;
    // Sound arrives in bursts, late but never early: the earliest time is right. But not for ever: some may be dropped,
    // and the microphone's clock is not ours.
    if (!(Math.abs(zero - this.#microphoneZero) <= MOVED_MS)) this.#zeros = { before: zero, recent: zero, since: now };
    else if (now - since > EARLIEST_MS) this.#zeros = { before: recent, recent: zero, since: now };
    else this.#zeros.recent = Math.min(recent, zero);
    this.#microphoneZero = Math.min(this.#zeros.before, this.#zeros.recent);
  }

  /** Return an outbox's handlers for a text that is typed now. @param {string} text */
  awaiting(text) {
    return this.#awaited.add(text);
  }

  /** Note that a text was typed. @param {number} now */
  typed(now) {
    this.#typedAt = now;
  }

  /** Note that the first sample of a reply goes to the loudspeaker. @param {number} epoch @param {number} now */
  sounded(epoch, now) {
    const turn = this.#replies.get(epoch)?.turn;
    const origin = turn === undefined ? undefined : this.#origins.get(turn);
    if (turn === undefined || origin === undefined) return;
    const latency = this.#latency(turn);
    if (latency.heard_ms < 0) latency.heard_ms = Math.max(0, now - origin);
  }

  /** Note how far a reply was played. @param {number} epoch @param {number} samples at the wire's rate */
  played(epoch, samples) {
    this.#replies.get(epoch)?.played(samples);
  }

  /** Take one of the server's messages. @param {ServerMessage} message */
  take(message) {
    switch (message.name) {
      case "state":
        this.state = message.state;
        break;
      case "speech_started":
        this.#spoken(message.turn);
        break;
      case "speech_stopped":
        this.#originate(message.turn, this.#microphoneZero + message.at_s * 1000);
        break;
      case "user_words":
        this.#spoken(message.turn).heard += message.settled;
        this.#spoken(message.turn).unheard = message.tail;
        break;
      case "user_turn":
        this.#settle(message);
        break;
      case "reply":
        this.#replies.set(message.epoch, new Reply(this.#add("assistant", "live"), message.turn));
        break;
      case "reply_text":
        this.#reply(message.epoch)?.append(message.text);
        break;
      case "audio":
        this.#reply(message.epoch)?.place(message.offset, message.words);
        break;
      case "interrupted":
        this.#interrupt(message.epoch, message.heard);
        break;
      case "reply_done":
        this.#complete(message.epoch, message.text);
        break;
      case "turn_done":
        this.#end(message.turn, message.how);
        break;
      case "latency": {
        const { name: _name, seq: _seq, ...figures } = message;
        Object.assign(this.#latency(message.turn), figures);
        break;
      }
      default:
        break;
    }
    this.#remember(message);
  }

  /** Return the captions as text, one line each; unheard text is in brackets. */
  transcript() {
    return this.lines
      .map(({ role, status, heard, unheard }) => {
        const cut = role === "assistant" && status !== "done" && unheard.trim() !== "";
        const said = cut ? `${heard.trim()} [${unheard.trim()}]` : heard + unheard;
        return `${role}: ${said.trim()}`;
      })
      .join("\n");
  }

  // ---- the person's lines

  /** @param {number} turn */
  #spoken(turn) {
    let line = this.#speech.get(turn);
    if (line === undefined) {
      line = this.#add("user", "live");
      this.#speech.set(turn, line);
    }
    return line;
  }

  /** @param {Extract<ServerMessage, { name: "user_turn" }>} message */
  #settle({ turn, text }) {
    const typed = !this.#speech.has(turn);
    if (typed && this.#typedAt >= 0) this.#originate(turn, this.#typedAt);
    if (typed) this.#typedAt = -1;
    if (!(typed && this.#awaited.come(text))) this.#takeBack("user", text);
    const line = this.#spoken(turn);
    Object.assign(line, { heard: text, unheard: "", status: "done" });
    this.#speech.delete(turn);
    if (!text) this.#remove(line);
  }

  // ---- the assistant's lines

  /** Return a reply unless it is over; a reply whose beginning was missed begins here. @param {number} epoch */
  #reply(epoch) {
    let reply = this.#replies.get(epoch);
    if (reply === undefined && epoch > this.#ended) {
      reply = new Reply(this.#add("assistant", "live"), 0);
      this.#replies.set(epoch, reply);
    }
    return reply;
  }

  /** @param {number} epoch @param {string} heard */
  #interrupt(epoch, heard) {
    const reply = this.#replies.get(epoch);
    if (reply === undefined) return;
    this.#takeBack("assistant", heard);
    if (reply.characters.join("").startsWith(heard)) reply.heard = Array.from(heard).length;
    reply.show();
    this.#close(epoch, reply, "interrupted");
  }

  /** @param {number} epoch @param {string} text */
  #complete(epoch, text) {
    const reply = this.#replies.get(epoch);
    if (reply === undefined) return;
    this.#takeBack("assistant", text);
    Object.assign(reply.line, { heard: text, unheard: "" });
    this.#close(epoch, reply, "done");
  }

  /** @param {number} epoch @param {Reply} reply @param {Line["status"]} status */
  #close(epoch, reply, status) {
    this.#replies.delete(epoch);
    this.#ended = Math.max(this.#ended, epoch);
    reply.line.status = status;
    if (!reply.line.heard && !reply.line.unheard) this.#remove(reply.line);
  }

  /** @param {number} turn @param {string} how */
  #end(turn, how) {
    const line = this.#speech.get(turn);
    this.#speech.delete(turn);
    if (line !== undefined) line.status = how === "failed" ? "failed" : "done";
    if (line !== undefined && !line.heard && !line.unheard) this.#remove(line);
    for (const [epoch, reply] of this.#replies) {
      if (how === "failed" && reply.turn === turn) this.#close(epoch, reply, "failed");
    }
  }

  // ---- helpers

  /** Remove a text that has its own line from the history's lines. @param {Line["role"]} role @param {string} text */
  #takeBack(role, text) {
    const line = this.lines.slice(0, this.#fromHistory).findLast((one) => one.role === role);
    const told = text.trim();
    if (!this.#catchesUp || !told || !line?.heard.endsWith(told)) return;
    line.heard = line.heard.slice(0, -told.length).trimEnd(); // the history joins turns that had no answer
    if (!line.heard) this.#remove(line);
  }

  /** @param {number} turn */
  #latency(turn) {
    let latency = this.turns.find((one) => one.turn === turn);
    if (latency === undefined) {
      latency = { turn, ...UNKNOWN };
      this.turns.push(latency);
      if (this.turns.length > MOST_TURNS) this.turns.shift();
    }
    return latency;
  }

  /** @param {number} turn @param {number} at */
  #originate(turn, at) {
    if (Number.isNaN(at)) return;
    this.#origins.set(turn, at);
    for (const old of this.#origins.keys()) if (old <= turn - MOST_TURNS) this.#origins.delete(old);
  }

  /** @param {Line["role"]} role @param {Line["status"]} status */
  #add(role, status) {
    /** @type {Line} */
    const line = { id: this.#nextId++, role, status, heard: "", unheard: "" };
    this.lines.push(line);
    if (this.lines.length > MOST_LINES) this.#remove(this.lines[0]);
    return line;
  }

  /** @param {Line} line */
  #remove(line) {
    const place = this.lines.indexOf(line);
    if (place >= 0) this.lines.splice(place, 1);
    if (place >= 0 && place < this.#fromHistory) this.#fromHistory -= 1;
  }

  /** Advance the checkpoint unless something is under way that the history lacks. @param {ServerMessage} message */
  #remember({ name, seq }) {
    const ends = name === "user_turn" || name === "reply_done" || name === "interrupted" || name === "turn_done";
    if (ends && !this.#replies.size && !this.#speech.size) this.checkpoint = Math.max(this.checkpoint, seq);
  }
}
