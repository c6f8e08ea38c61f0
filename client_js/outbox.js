/**
 * What a client says, until it is known to have arrived: kept while there is no connection, and said again where a line
 * has swallowed it that was dead before anybody knew.
 *
 *     waiting ──▶ written ──▶ unsure ──a later ping is answered──▶ arrived
 *                   ▲            └─ the line breaks ─▶ doubtful ──the first ping of the next is answered──▶ forgotten
 *                   └──────────────────────────────────────┴─ if it seems to be lost
 *
 * It knows neither sockets nor messages: whether one is lost, its sender is asked.
 */

/**
 * @typedef {object} Sending
 * @property {boolean} [survives] whether it also makes sense in a conversation begun anew
 * @property {boolean} [ordered] it waits until it is known what became of those before it that are ordered as well
 * @property {boolean} [hushes] it takes back those that are ordered, were said and may be lost
 * @property {() => void} [said] told whenever it is said
 * @property {() => boolean} [lost] asked when the line broke behind it, and all has been told again since: whether the
 *   server seems not to have got it. Then it is said again; without this never
 * @property {() => void} [arrived] told once that is certain, or seems so, where there is a `lost`
 */
/** @typedef {{ frame: Uint8Array<ArrayBuffer> } & Sending} Sent */

/** Messages that wait for a connection: more is not typed while one is away. */
const WAITING = 64;

/** One conversation's messages on their way. */
export class Outbox {
  #write;
  /** @type {Sent[]} */
  #waiting = [];
  /** @type {(Sent & { mark: number })[]} Said since the last ping that was answered: `mark` was the newest then. */
  #unsure = [];
  /** @type {Sent[]} Said on a line that broke, until it is known what came of it. */
  #doubtful = [];

  /** @param {(frame: Uint8Array<ArrayBuffer>) => void} write */
  constructor(write) {
    this.#write = write;
  }

  /**
   * Say something, or keep it; return false if neither can be.
   * @param {Sent} sent
   * @param {number | null} mark the newest ping's, null while there is no connection
   */
  send(sent, mark) {
    if (sent.hushes) {
      this.#unsure = this.#unsure.filter((one) => !one.ordered);
      this.#doubtful = this.#doubtful.filter((one) => !one.ordered);
      if (mark !== null) this.release(mark); // what waited for those was asked for before it
    }
    if (mark === null || (sent.ordered && this.#doubtful.some((one) => one.ordered))) {
      return this.#waiting.length < WAITING && this.#waiting.push(sent) > 0;
    }
    if (sent.lost) this.#unsure.push({ ...sent, mark });
    sent.said?.();
    this.#write(sent.frame);
    return true;
  }

  /** Take it that there is a connection again. @param {boolean} resumed whether it is the same conversation */
  begin(resumed) {
    /** @param {Sent} one */
    const matters = (one) => resumed || one.survives;
    this.#doubtful = [...this.#doubtful, ...this.#unsure].filter(matters);
    this.#waiting = this.#waiting.filter(matters);
    this.#unsure = [];
  }

  /** Say what waits, as far as it may go. @param {number} mark */
  release(mark) {
    for (const one of this.#waiting.splice(0)) this.send(one, mark);
  }

  /** Take it that the newest ping was answered: all before it arrived, and was told again. @param {number} mark */
  answered(mark) {
    const arrived = this.#unsure.filter((one) => one.mark < mark);
    this.#unsure = this.#unsure.filter((one) => one.mark >= mark);
    for (const one of arrived) one.arrived?.();
    for (const one of this.#doubtful.splice(0)) {
      if (one.lost?.()) this.send(one, mark);
      else one.arrived?.();
    }
    this.release(mark);
  }

  /** Forget everything. */
  clear() {
    this.#waiting = [];
    this.#unsure = [];
    this.#doubtful = [];
  }
}
