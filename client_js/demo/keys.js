/** What a key means, wherever the focus is. Pure. */

/**
 * @typedef {object} Pressed
 * @property {string} key
 * @property {boolean} repeat
 * @property {boolean} modified whether Ctrl, Alt or Meta is held with it
 * @property {boolean} typing whether the focus is where text is written or a value chosen
 * @property {boolean} pushToTalk
 */

/** @typedef {"interrupt" | "mute" | "talk" | "swallow"} Meaning `swallow`: it belongs to us, and does nothing more */

/** Return what a key means, null if it is not ours. @param {Pressed} pressed @returns {Meaning | null} */
export function meaningOf({ key, repeat, modified, typing, pushToTalk }) {
  if (modified) return null;
  if (key === "Escape") return "interrupt";
  if (typing) return null;
  if (key === " " && pushToTalk) return repeat ? "swallow" : "talk";
  return key.toLowerCase() === "m" && !repeat ? "mute" : null;
}

/** Kinds of input that take no text: a letter typed there is a shortcut. */
const WORDLESS = new Set(["button", "submit", "reset", "checkbox", "radio"]);

/**
 * Return whether keys are text or a choice where the focus is.
 * @param {{ tagName: string, type?: string, isContentEditable?: boolean } | null} focused
 */
export function isTyping(focused) {
  if (focused === null) return false;
  const { tagName, type = "text", isContentEditable = false } = focused;
  if (tagName === "INPUT") return !WORDLESS.has(type);
  return tagName === "TEXTAREA" || tagName === "SELECT" || isContentEditable;
}
