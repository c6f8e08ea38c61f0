/** What a key means, wherever the focus is. Pure. */

/** @typedef {"writing" | "control" | "free"} Focus where keys are text or a choice; where Space presses; neither */

/**
 * @typedef {object} Pressed
 * @property {string} key
 * @property {boolean} repeat
 * @property {boolean} modified whether Ctrl, Alt or Meta is held with it
 * @property {boolean} composing whether it belongs to an input method that is making a character
 * @property {Focus} focus
 * @property {boolean} pushToTalk
 */

/** @typedef {"interrupt" | "mute" | "talk" | "swallow"} Meaning `swallow`: it belongs to us, and does nothing more */

/** Return what a key means, null if it is not ours. @param {Pressed} pressed @returns {Meaning | null} */
export function meaningOf({ key, repeat, modified, composing, focus, pushToTalk }) {
  if (modified || composing) return null;
  if (key === "Escape") return repeat ? null : "interrupt";
  if (focus === "writing") return null;
  if (key === " " && pushToTalk && focus === "free") return repeat ? "swallow" : "talk";
  return key.toLowerCase() === "m" && !repeat ? "mute" : null;
}

/** Kinds of input that take no text: a letter typed there is a shortcut, and Space is theirs. */
const WORDLESS = new Set(["button", "submit", "reset", "checkbox", "radio"]);

/** The button that Space holds down, as it does where no control has the focus. */
const HOLD = "hold";

/**
 * Return what keys do where the focus is.
 * @param {{ id?: string, tagName: string, type?: string, isContentEditable?: boolean } | null} focused
 * @returns {Focus}
 */
export function focusOf(focused) {
  if (focused === null || focused.id === HOLD) return "free";
  const { tagName, type = "text", isContentEditable = false } = focused;
  if (tagName === "INPUT") return WORDLESS.has(type) ? "control" : "writing";
  if (tagName === "TEXTAREA" || tagName === "SELECT" || isContentEditable) return "writing";
  return tagName === "BUTTON" || tagName === "SUMMARY" ? "control" : "free";
}
