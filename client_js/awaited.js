/**
 * Typed texts whose turns have not come yet: what tells a text that a broken line has swallowed from one that arrived.
 *
 * Turns come in the order in which texts are said, and before the answer to a ping behind them. It knows texts by their
 * words alone, and neither sockets nor lines.
 */

/** Return a text as both ends know it: their notions of white space differ, and UTF-8 has no half characters. */
function bare(/** @type {string} */ text) {
  return text.replace(/\p{Surrogate}/gu, "\uFFFD").replace(/^[\s\x1c-\x1f\x85\uFEFF]+|[\s\x1c-\x1f\x85\uFEFF]+$/g, "");
}

/** One conversation's texts on their way, as they were said. */
export class AwaitedTexts {
  /** @type {{ text: string, old: boolean }[]} `old`: its turn comes before the next ping is answered, or never */
  #texts = [];

  /**
   * Return what wants to know whenever a text is `said`, and knows whether it seems `lost`.
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

  /** Take it that a typed turn has come; return whether it was awaited. @param {string} text */
  come(text) {
    const place = this.#texts.findIndex((awaited) => awaited.text === bare(text));
    if (place >= 0) this.#texts.splice(place, 1);
    return place >= 0;
  }

  /** Take it that there is another line: nothing that was said on the one before is still on its way. */
  begin() {
    for (const awaited of this.#texts) awaited.old = true;
  }

  /** Take it that a ping was answered. */
  catchUp() {
    this.#texts = this.#texts.filter(({ old }) => !old);
    this.begin(); // what was said behind this ping was said before the next
  }
}
