/**
 * The queue before a loudspeaker: replies in their order, sample by sample, and an exact account of what was played.
 *
 * Whoever owns the sound card pulls; time is the number of samples pulled, so that it runs at any speed. A reply begins
 * when enough of it has come to outlast the network's stutter, or when it has waited that long; how much that is grows
 * with every underrun and shrinks with every reply that had none. Once begun, a reply goes on with the very next sample
 * whatever happens. It knows samples, epochs and offsets, at one rate; it has no clock, no card and no socket.
 */

/** How often the other side is told what was played; it is also told at once on hold, interruption and at an end. */
const ACK_S = 0.1;

/** Sound that a reply begins with: at first, at least, at most. The server sends ahead, so that little is needed. */
const FIRST_S = 0.04;
const LEAST_S = 0.02;
const MOST_S = 0.4;

/** What an underrun adds to the time it lasted. */
const MARGIN_S = 0.02;

/** Part of what is above the least that remains after a reply without an underrun. */
const FADING = 0.75;

/** @typedef {{ epoch: number, samples: number, queued: number }} Ack what was played of a reply, and what waits */
/** @typedef {{ epoch: number, offset: number, samples: Float32Array }} Chunk */

/** Plays replies in their order. */
export class JitterBuffer {
  /** Of the reply that is played, or was last; 0: none yet. */
  epoch = 0;
  /** Its samples that were played, or skipped because they came before we did. */
  position = 0;
  /** Samples that wait. */
  queued = 0;
  held = false;
  underruns = 0;
  /** Samples of silence that underruns have cost. */
  starvedSamples = 0;

  #rate;
  /** @type {Chunk[]} */
  #queue = [];
  #end = { epoch: 0, offset: 0 }; // behind the last sample that came
  #heldEpoch = 0;
  #cut = 0; // the last epoch that was thrown away
  #finished = 0; // the last epoch all sound of which has come
  #begun = false; // whether the reply at the head plays: until then it waits to be enough
  #waited = 0; // samples since it came
  #starved = 0; // samples of the present underrun
  #stumbled = false; // whether this reply had one
  #target;
  #ackedEpoch = 0;
  #ackedSamples = 0; // of the reply that is played; where it began, before its first ack
  /** @type {Ack[]} */
  #acks = [];

  /** @param {number} rate */
  constructor(rate) {
    this.#rate = rate;
    this.#target = FIRST_S * rate;
  }

  /** Samples that a reply begins with. */
  get target() {
    return Math.round(this.#target);
  }

  /** Whether there is something of a reply that was not played to its end. */
  get playing() {
    return this.queued > 0 || (this.#begun && this.epoch > this.#finished);
  }

  /**
   * Take sound of a reply; what is told again is skipped, as is the sound of replies that are over.
   * @param {number} epoch
   * @param {number} offset of its first sample in the reply
   * @param {Float32Array} samples
   */
  push(epoch, offset, samples) {
    if (epoch < this.#end.epoch) return;
    const known = epoch === this.#end.epoch ? this.#end.offset : 0;
    const skipped = Math.max(0, known - offset);
    if (skipped >= samples.length) return;
    this.#queue.push({ epoch, offset: offset + skipped, samples: samples.subarray(skipped) });
    this.queued += samples.length - skipped;
    this.#end = { epoch, offset: offset + samples.length };
    if (this.#starved && epoch === this.epoch) this.#learn();
  }

  /**
   * Take it that all sound of a reply has come, and that what lies behind its end is none of it: codecs add to it.
   * @param {number} epoch
   * @param {number} [end]
   */
  finish(epoch, end = Infinity) {
    this.#finished = Math.max(this.#finished, epoch);
    for (const chunk of this.#queue) {
      if (chunk.epoch === epoch) chunk.samples = chunk.samples.subarray(0, Math.max(0, end - chunk.offset));
    }
    this.#queue = this.#queue.filter((chunk) => chunk.samples.length);
    this.queued = this.#queue.reduce((sum, chunk) => sum + chunk.samples.length, 0);
    if (epoch !== this.epoch || this.queued) return;
    this.#ack();
    this.#conclude();
  }

  /** Be silent from the next sample on, and keep what waits. @param {number} epoch */
  hold(epoch) {
    if (epoch < this.epoch) return;
    this.held = true;
    this.#heldEpoch = epoch;
    this.#ack();
  }

  /** Go on with the very next sample. @param {number} epoch */
  release(epoch) {
    if (epoch >= this.#heldEpoch) this.held = false;
  }

  /** Throw a reply away, and all before it. @param {number} epoch */
  interrupt(epoch) {
    this.#cut = Math.max(this.#cut, epoch);
    this.#queue = this.#queue.filter((chunk) => chunk.epoch > epoch);
    this.queued = this.#queue.reduce((sum, chunk) => sum + chunk.samples.length, 0);
    this.#finished = Math.max(this.#finished, epoch);
    if (epoch >= this.#heldEpoch) this.held = false;
    if (epoch >= this.#end.epoch) this.#end = { epoch: epoch + 1, offset: 0 };
    if (epoch < this.epoch) return;
    this.#ack();
    this.#starved = 0;
    this.#begun = false;
    this.#waited = 0;
  }

  /**
   * Take it that the connection was lost and is back: all that was not played will come again, and what was said last
   * of it may have been lost on the way. What was thrown away stays so: the server may not know of it yet.
   * @param {boolean} held
   */
  restart(held) {
    this.#queue = [];
    this.queued = 0;
    const cut = this.#cut >= this.epoch;
    this.#end = cut ? { epoch: this.#cut + 1, offset: 0 } : { epoch: this.epoch, offset: this.position };
    this.held = held;
    this.#heldEpoch = 0;
    this.#starved = 0;
    this.#begun = false;
    this.#waited = 0;
    this.#ackedEpoch = 0;
    this.#ack();
  }

  /** Forget everything but what was learnt of the network: another conversation begins. */
  reset() {
    this.epoch = this.position = this.#finished = this.#cut = 0;
    this.#ackedSamples = 0;
    this.#acks = [];
    this.restart(false);
  }

  /**
   * Fill a block with the next samples, silence where there are none.
   * @param {Float32Array} block
   * @returns {number} how many are a reply's
   */
  pull(block) {
    let filled = 0;
    while (filled < block.length && !this.held && this.#queue.length && this.#begins(block.length)) {
      const chunk = this.#queue[0];
      if (chunk.epoch !== this.epoch) this.#turnTo(chunk);
      const part = chunk.samples.subarray(0, block.length - filled);
      block.set(part, filled);
      filled += part.length;
      chunk.offset += part.length;
      chunk.samples = chunk.samples.subarray(part.length);
      this.position = chunk.offset;
      this.queued -= part.length;
      if (!chunk.samples.length) this.#leave();
    }
    block.fill(0, filled);
    if (filled < block.length) this.#miss(block.length - filled);
    if (filled && (this.queued === 0 || this.position - this.#ackedSamples >= ACK_S * this.#rate)) this.#ack();
    return filled;
  }

  /** Return what the other side should be told now. @returns {Ack[]} */
  takeAcks() {
    const acks = this.#acks;
    this.#acks = [];
    return acks;
  }

  /** Whether the reply at the head plays, or may begin: enough has come, or it has waited. @param {number} step */
  #begins(step) {
    if (this.#begun) return true;
    const { epoch } = this.#queue[0];
    let ready = 0;
    for (const chunk of this.#queue) if (chunk.epoch === epoch) ready += chunk.samples.length;
    // A server that sends little ahead would wait for our acks while we wait for its sound: hence the time.
    if (epoch > this.#finished && ready < this.#target && this.#waited < this.#target) {
      this.#waited += step;
      return false;
    }
    this.#begun = true;
    this.#waited = 0;
    return true;
  }

  /** @param {Chunk} chunk the first of another reply */
  #turnTo(chunk) {
    this.#ack();
    this.epoch = chunk.epoch;
    this.position = this.#ackedSamples = chunk.offset;
    this.#stumbled = false;
  }

  /** Drop the first chunk, which was played; the next may belong to another reply. */
  #leave() {
    this.#queue.shift();
    if (this.#queue.length ? this.#queue[0].epoch > this.epoch : this.epoch <= this.#finished) this.#conclude();
  }

  /** The reply was played to its end. */
  #conclude() {
    if (!this.#begun) return;
    this.#begun = false;
    this.#starved = 0;
    if (!this.#stumbled) this.#target = LEAST_S * this.#rate + FADING * (this.#target - LEAST_S * this.#rate);
  }

  /** Note silence within a reply: an underrun if more of it follows, its end if not. @param {number} samples */
  #miss(samples) {
    if (this.held || !this.#begun || this.#queue.length || this.epoch <= this.#finished) return;
    this.#starved += samples;
  }

  /** Sound has come too late: the next pause, which begins now, shall outlast a delay like this one. */
  #learn() {
    this.underruns += 1;
    this.starvedSamples += this.#starved;
    this.#stumbled = true;
    const wanted = this.#starved + MARGIN_S * this.#rate;
    this.#target = Math.min(MOST_S * this.#rate, Math.max(this.#target, wanted));
    this.#starved = 0;
    this.#begun = false;
    this.#waited = 0;
  }

  #ack() {
    if (!this.epoch) return;
    if (this.#ackedEpoch === this.epoch && this.#ackedSamples === this.position) return;
    this.#ackedEpoch = this.epoch;
    this.#ackedSamples = this.position;
    this.#acks.push({ epoch: this.epoch, samples: this.position, queued: this.queued });
  }
}
