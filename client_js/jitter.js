/**
 * A loudspeaker's jitter buffer: replies in their order, sample by sample, and an exact account of what was played.
 *
 * The sound card's callback pulls; time is the number of samples pulled, so that it runs at any speed. A reply begins
 * when enough of it has come to outlast the network's jitter, or when it has waited that long. That amount grows with
 * every underrun and shrinks with every reply that had none. Once begun, a reply always goes on with its very next
 * sample.
 */

/** How often acks are sent; they are also sent at once on a hold, an interruption and at a reply's end. */
const ACK_S = 0.1;

/** Buffered sound with which a reply begins: at first, at least, at most. Little is needed: the server sends ahead. */
const FIRST_S = 0.04;
const LEAST_S = 0.02;
const MOST_S = 0.4;

/** Added to an underrun's duration for the new target. */
const MARGIN_S = 0.02;

/** Share of the target above the minimum that remains after a reply without an underrun. */
const FADING = 0.75;

/** @typedef {{ epoch: number, samples: number, queued: number }} Ack what was played of a reply, and what waits */
/** @typedef {{ epoch: number, offset: number, samples: Float32Array }} Chunk */

/** Plays replies in their order. */
export class JitterBuffer {
  /** The epoch of the reply that plays or played last; 0: none yet. */
  epoch = 0;
  /** Its samples that were played, or skipped because they came before this page. */
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
  #end = { epoch: 0, offset: 0 }; // after the last sample that came
  #heldEpoch = 0;
  #cut = 0; // the last epoch that was dropped
  #finished = 0; // the last epoch whose sound is complete
  #begun = false; // whether the first reply plays; until then it waits for enough sound
  #waited = 0; // samples since the first reply came
  #starved = 0; // samples of the current underrun
  #stumbled = false; // whether this reply had an underrun
  #target;
  #ackedEpoch = 0;
  #ackedSamples = 0; // samples of the playing reply that were acked; before its first ack, where it began
  /** @type {Ack[]} */
  #acks = [];

  /** @param {number} rate */
  constructor(rate) {
    this.#rate = rate;
    this.#target = FIRST_S * rate;
  }

  /** Buffered samples with which a reply begins. */
  get target() {
    return Math.round(this.#target);
  }

  /** Whether a reply was not played to its end. */
  get playing() {
    return this.queued > 0 || (this.#begun && this.epoch > this.#finished);
  }

  /**
   * Take sound of a reply; repeated sound is skipped, as is the sound of replies that are over.
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
   * Note that all sound of a reply has come; samples after its end, which codecs add, are dropped.
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

  /** Continue with the very next sample. @param {number} epoch */
  release(epoch) {
    if (epoch >= this.#heldEpoch) this.held = false;
  }

  /** Drop a reply and all before it. @param {number} epoch */
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
   * Note that the connection was lost and is back: all that was not played will come again, and the last orders
   * may have been lost. Dropped replies stay dropped: the server may not know of it yet.
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

  /** Begin another conversation: forget everything except what was learnt of the network. */
  reset() {
    this.epoch = this.position = this.#finished = this.#cut = 0;
    this.#ackedSamples = 0;
    this.#acks = [];
    this.restart(false);
  }

  /**
   * Fill a block with the next samples, silence where there are none.
   * @param {Float32Array} block
   * @returns {number} how many of them belong to a reply
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

  /** Return the acks that are due. @returns {Ack[]} */
  takeAcks() {
    const acks = this.#acks;
    this.#acks = [];
    return acks;
  }

  /** Whether the first reply plays or may begin: enough has come, or it has waited. @param {number} step */
  #begins(step) {
    if (this.#begun) return true;
    const { epoch } = this.#queue[0];
    let ready = 0;
    for (const chunk of this.#queue) if (chunk.epoch === epoch) ready += chunk.samples.length;
    // The time limit is needed because a server that sends little ahead waits for our acks while we wait for its sound.
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

  /** Note that the reply was played to its end. */
  #conclude() {
    if (!this.#begun) return;
    this.#begun = false;
    this.#starved = 0;
    if (!this.#stumbled) this.#target = LEAST_S * this.#rate + FADING * (this.#target - LEAST_S * this.#rate);
  }

  /** Note silence within a reply: an underrun if more of it follows, otherwise its end. @param {number} samples */
  #miss(samples) {
    if (this.held || !this.#begun || this.#queue.length || this.epoch <= this.#finished) return;
    this.#starved += samples;
  }

  /** Sound has come too late: the pause that begins now is to outlast a delay like this one. */
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
