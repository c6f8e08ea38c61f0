/**
 * Typed texts whose turns have not come yet: this tells a text lost with a broken connection from one that arrived.
 *
 * Turns come in the order in which texts were sent, and before the answer to a later ping. Texts are compared by their
 * words alone.
 */

/** Return a text as both ends see it: their notions of white space differ, and UTF-8 has no lone surrogates. */
function bare(/** @type {string} */ text) {
  return text.replace(/\p{Surrogate}/gu, "\uFFFD").replace(/^[\s\x1c-\x1f\x85\uFEFF]+|[\s\x1c-\x1f\x85\uFEFF]+$/g, "");
}

/** One conversation's texts on their way, in the order in which they were sent. */
export class AwaitedTexts {
  /** @type {{ text: string, old: boolean }[]} `old`: its turn comes before the answer to the next ping, or never */
  #texts = [];

  /**
   * Return a text's handlers: `said` is called whenever it is sent, `lost` returns whether it seems lost.
   * @param {string} text
   */
  add(text) {
    const awaited = { text: bare(text), old: false };
    const said = () => {
      this.#texts = [...this.#texts.filter((one) => one !== awaited), awaited];
      awaited.old = false;
    };
    return { said, lost: () => this.#texts.includes(awaited) };
  }

  /** Note that a typed turn has come; return whether it was awaited. @param {string} text */
  come(text) {
    const place = this.#texts.findIndex((awaited) => awaited.text === bare(text));
    if (place >= 0) this.#texts.splice(place, 1);
    return place >= 0;
  }

  /** Note that there is a new connection: nothing sent on the last one is still on its way. */
  begin() {
    for (const awaited of this.#texts) awaited.old = true;
  }

  /** Note that a ping was answered. */
  catchUp() {
    this.#texts = this.#texts.filter(({ old }) => !old);
    this.begin(); // texts sent after this ping were sent before the next one
  }
}
