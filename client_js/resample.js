/**
 * Streaming sample-rate conversion with a windowed-sinc polyphase filter.
 *
 * Output n lies at n / targetRate of the input's time. Its bits do not depend on how the input was cut into
 * pieces. Nothing is delayed; the newest `holdBack` input samples wait for the samples after them (1.5 ms at 48 to
 * 16 kHz). The transition is centred on the slower rate's Nyquist frequency, flat to 7/8 of it; aliases below that are
 * at least 90 dB down.
 */

/** Zero crossings of the sinc on each side: with the transition below they give 94 dB, enough for 16 bits. */
const CROSSINGS = 24;

/** Width of the transition band as a part of the slower rate's Nyquist frequency. */
const TRANSITION = 0.25;

/** Phases in the table. Ratios that need more are interpolated; the error is 100 dB down. */
const MOST_PHASES = 512;

/**
 * @typedef {object} Filter
 * @property {number} up
 * @property {number} down
 * @property {number} half input samples on each side of an output
 * @property {number} phases
 * @property {Float32Array[]} bank phases + 1 rows of 2 * half weights
 */

/** Converts a stream of mono samples from one rate to another, piece by piece. */
export class Resampler {
  /** @type {Filter} */
  #filter;
  /** @type {Float32Array} Inputs that later outputs need. */
  #pending;
  #count = 0; // how many inputs are pending
  #origin = 0; // the index of the first of them in the stream
  #produced = 0;

  /**
   * @param {number} sourceRate
   * @param {number} targetRate
   */
  constructor(sourceRate, targetRate) {
    for (const rate of [sourceRate, targetRate]) {
      if (!(Number.isInteger(rate) && rate >= 3000 && rate <= 768000)) throw new RangeError(`a sample rate of ${rate}`);
    }
    this.sourceRate = sourceRate;
    this.targetRate = targetRate;
    this.#filter = design(sourceRate, targetRate);
    this.#pending = new Float32Array(4096);
    this.reset();
  }

  /** Input samples that wait for the samples after them. */
  get holdBack() {
    return this.sourceRate === this.targetRate ? 0 : this.#filter.half;
  }

  /**
   * Forget the stream and begin another, whose first input has this index; outputs are numbered from it too.
   * @param {number} [first]
   * @returns {number} the index of the next output
   */
  reset(first = 0) {
    const silence = this.#filter.half - 1; // what lies before the first sample
    this.#pending.fill(0, 0, silence);
    this.#count = silence;
    this.#origin = first - silence;
    this.#produced = Math.ceil((first * this.#filter.up) / this.#filter.down);
    return this.#produced;
  }

  /**
   * Take the next samples and return all outputs that can be computed now.
   * @param {Float32Array} samples
   * @returns {Float32Array<ArrayBuffer>}
   */
  push(samples) {
    if (this.sourceRate === this.targetRate) return samples.slice();
    this.#append(samples);
    const { up, down, half } = this.#filter;
    return this.#emit(Math.ceil(((this.#origin + this.#count - half) * up) / down));
  }

  /**
   * Return the held-back outputs as if silence followed; `reset` begins another stream.
   * @returns {Float32Array<ArrayBuffer>}
   */
  flush() {
    if (this.sourceRate === this.targetRate) return new Float32Array(0);
    const { up, down, half } = this.#filter;
    const end = Math.ceil(((this.#origin + this.#count) * up) / down);
    this.#append(new Float32Array(half));
    return this.#emit(end);
  }

  /** @param {Float32Array} samples */
  #append(samples) {
    if (this.#count + samples.length > this.#pending.length) {
      const larger = new Float32Array(2 * (this.#count + samples.length));
      larger.set(this.#pending.subarray(0, this.#count));
      this.#pending = larger;
    }
    this.#pending.set(samples, this.#count);
    this.#count += samples.length;
  }

  /** Return the outputs up to `end` not returned yet; drop inputs no longer needed. @param {number} end */
  #emit(end) {
    const { up, down, half, phases, bank } = this.#filter;
    const result = new Float32Array(Math.max(0, end - this.#produced));
    for (let place = 0; place < result.length; place++) {
      const time = (this.#produced + place) * down;
      const whole = Math.floor(time / up);
      const phase = ((time - whole * up) * phases) / up;
      const row = Math.floor(phase);
      const first = whole + 1 - half - this.#origin;
      let value = this.#weigh(bank[row], first);
      if (phase !== row) value += (phase - row) * (this.#weigh(bank[row + 1], first) - value);
      result[place] = value;
    }
    this.#produced += result.length;
    const used = Math.max(0, Math.floor((this.#produced * down) / up) + 1 - half - this.#origin);
    this.#pending.copyWithin(0, used, this.#count);
    this.#count -= used;
    this.#origin += used;
    return result;
  }

  /** @param {Float32Array} weights @param {number} first */
  #weigh(weights, first) {
    const pending = this.#pending;
    let sum = 0;
    for (let tap = 0; tap < weights.length; tap++) sum += weights[tap] * pending[first + tap];
    return sum;
  }
}

/** @type {Map<string, Filter>} */
const designs = new Map();

/** @param {number} sourceRate @param {number} targetRate @returns {Filter} */
function design(sourceRate, targetRate) {
  const name = `${sourceRate}/${targetRate}`;
  let filter = designs.get(name);
  if (filter === undefined) {
    filter = makeFilter(sourceRate, targetRate);
    designs.set(name, filter);
  }
  return filter;
}

/** @param {number} sourceRate @param {number} targetRate @returns {Filter} */
function makeFilter(sourceRate, targetRate) {
  const common = gcd(sourceRate, targetRate);
  const [up, down] = [targetRate / common, sourceRate / common];
  const slower = Math.min(sourceRate, targetRate);
  const half = Math.ceil((CROSSINGS * sourceRate) / slower);
  const phases = Math.min(up, MOST_PHASES);
  // Kaiser's rules give the attenuation for this length and transition, and the window's shape for it.
  const attenuation = 8 + 2.285 * 2 * CROSSINGS * TRANSITION * Math.PI;
  const beta = 0.1102 * (attenuation - 8.7);
  const bank = [];
  for (let phase = 0; phase <= phases; phase++) {
    const row = new Float64Array(2 * half);
    for (let tap = 0; tap < row.length; tap++) {
      const distance = tap + 1 - half - phase / phases; // in input samples
      const inside = 1 - (distance / half) ** 2;
      row[tap] = inside < 0 ? 0 : sinc((distance * slower) / sourceRate) * bessel(beta * Math.sqrt(inside));
    }
    const sum = row.reduce((total, weight) => total + weight, 0);
    bank.push(Float32Array.from(row, (weight) => weight / sum)); // every phase has the same gain at 0 Hz
  }
  return { up, down, half, phases, bank };
}

/** @param {number} x */
function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** The modified Bessel function of order 0, by its series. @param {number} x */
function bessel(x) {
  let [sum, term] = [1, 1];
  for (let n = 1; term > sum * 1e-17; n++) {
    term *= (x / (2 * n)) ** 2;
    sum += term;
  }
  return sum;
}

/** @param {number} a @param {number} b @returns {number} */
function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}
