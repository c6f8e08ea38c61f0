/** The meaning of a key, given the focus. Pure. */

/** @typedef {"writing" | "control" | "free"} Focus where keys are text or a choice; where Space presses; neither */

/**
 * @typedef {object} Pressed
 * @property {string} key
 * @property {boolean} repeat
 * @property {boolean} modified whether Ctrl, Alt or Meta is held with it
 * @property {boolean} composing whether an input method is composing a character with it
 * @property {Focus} focus
 * @property {boolean} pushToTalk
 */

/** @typedef {"begin" | "interrupt" | "mute" | "talk" | "swallow"} Meaning `swallow`: it belongs to us, and does nothing more */

/** Return a key's meaning, null if it has none here. @param {Pressed} pressed @returns {Meaning | null} */
export function meaningOf({ key, repeat, modified, composing, focus, pushToTalk }) {
  if (modified || composing) return null;
  if (key === "Escape") return repeat ? null : "interrupt";
  if (focus === "writing") return null;
  if (key === "Enter") return focus === "free" && !repeat ? "begin" : null;
  if (key === " " && pushToTalk && focus === "free") return repeat ? "swallow" : "talk";
  return key.toLowerCase() === "m" && !repeat ? "mute" : null;
}

/** Inputs that take no text: a letter typed there is a shortcut, and Space operates the input. */
const WORDLESS = new Set(["button", "submit", "reset", "checkbox", "radio"]);

/** The button that Space holds down, with or without the focus on it. */
const HOLD = "hold";

/**
 * Return what kind of element has the focus.
 * @param {{ id?: string, tagName: string, type?: string, isContentEditable?: boolean } | null} focused
 * @returns {Focus}
 */
export function focusOf(focused) {
  if (focused === null || focused.id === HOLD) return "free";
  const { tagName, type = "text", isContentEditable = false } = focused;
  if (tagName === "INPUT") return WORDLESS.has(type) ? "control" : "writing";
  if (tagName === "TEXTAREA" || tagName === "SELECT" || isContentEditable) return "writing";
  return tagName === "BUTTON" || tagName === "SUMMARY" || tagName === "A" ? "control" : "free";
}
