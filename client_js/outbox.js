/**
 * A client's messages until they are known to have arrived: they are kept while there is no connection, and sent again
 * if they were lost with a connection that was dead before this was known.
 *
 *     waiting ──▶ written ──▶ unsure ──a later ping is answered──▶ arrived
 *                   ▲            └─ the line breaks ─▶ doubtful ──the next line's first ping is answered──▶ forgotten
 *                   └──────────────────────────────────────┴─ if it seems lost
 *
 * The sender of a message decides whether it is lost.
 */

/**
 * @typedef {object} Sending
 * @property {boolean} [survives] the message also makes sense in a new conversation
 * @property {boolean} [ordered] it waits until the fate of all earlier ordered messages is known
 * @property {boolean} [hushes] it revokes ordered messages that were sent and may be lost
 * @property {() => void} [said] called whenever it is sent
 * @property {() => boolean} [lost] called when the line broke after it and the server has repeated all since: whether
 *   the server seems not to have got it. Then it is sent again; without `lost` it never is
 * @property {() => void} [arrived] called once it is certain that it arrived, or, with `lost`, once it seems so
 */
/** @typedef {{ frame: Uint8Array<ArrayBuffer> } & Sending} Sent */

/** Messages that may wait for a connection: a person types no more than this meanwhile. */
const WAITING = 64;

/** One conversation's messages on their way. */
export class Outbox {
  #write;
  /** @type {Sent[]} */
  #waiting = [];
  /** @type {(Sent & { mark: number })[]} Sent since the last answered ping; `mark` is the newest ping at that time. */
  #unsure = [];
  /** @type {Sent[]} Sent on a line that broke, until their fate is known. */
  #doubtful = [];

  /** @param {(frame: Uint8Array<ArrayBuffer>) => void} write */
  constructor(write) {
    this.#write = write;
  }

  /**
   * Send a message or keep it; return false if neither is possible.
   * @param {Sent} sent
   * @param {number | null} mark of the newest ping, null while there is no connection
   */
  send(sent, mark) {
    if (sent.hushes) {
      this.#unsure = this.#unsure.filter((one) => !one.ordered);
      this.#doubtful = this.#doubtful.filter((one) => !one.ordered);
      if (mark !== null) this.release(mark); // messages that waited for those were asked for before it
    }
    if (mark === null || (sent.ordered && this.#doubtful.some((one) => one.ordered))) {
      return this.#waiting.length < WAITING && this.#waiting.push(sent) > 0;
    }
    if (sent.lost) this.#unsure.push({ ...sent, mark });
    sent.said?.();
    this.#write(sent.frame);
    return true;
  }

  /** Note that there is a connection again. @param {boolean} resumed whether it is the same conversation */
  begin(resumed) {
    /** @param {Sent} one */
    const matters = (one) => resumed || one.survives;
    this.#doubtful = [...this.#doubtful, ...this.#unsure].filter(matters);
    this.#waiting = this.#waiting.filter(matters);
    this.#unsure = [];
  }

  /** Send the waiting messages, as far as they may go. @param {number} mark */
  release(mark) {
    for (const one of this.#waiting.splice(0)) this.send(one, mark);
  }

  /** Note that the newest ping was answered: all messages before it arrived. @param {number} mark */
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
