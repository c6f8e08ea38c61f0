/** Around the conversation: light and dark, the side panel, the menu of files, saving one. */

import { part } from "./dom.js";
import { openStorage } from "./storage.js";

const THEME = "voxlane.theme";

/** @typedef {"light" | "dark"} Theme */

/** Let the button choose between light and dark; until then the system chooses. @param {() => void} changed */
export function installTheme(changed) {
  const sheet = part("dark", HTMLLinkElement);
  const button = part("theme", HTMLButtonElement);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const storage = openStorage(() => localStorage);
  const isDark = () => matchMedia(sheet.media).matches;
  const show = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    changed();
  };
  /** @param {string | null} theme */
  const use = (theme) => {
    if (theme === "light" || theme === "dark") sheet.media = theme === "dark" ? "all" : "not all";
    show();
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    storage.setItem(THEME, theme);
    use(theme);
  });
  system.addEventListener("change", show);
  use(storage.getItem(THEME));
}

/** Below this width the panel lies over the conversation, and is closed at first. */
const NARROW = "(max-width: 899px)";

/** page.css hides the keys under the same condition: a telephone has no Space key to hold. */
const KEYLESS = `${NARROW}, (pointer: coarse)`;

/** Return whether to tell people of keys. */
export function hasKeys() {
  return !matchMedia(KEYLESS).matches;
}

/** Let the button open and close the panel; return functions that do so, `uncover` only where it lies over the page. */
export function installPanel() {
  const button = part("panel-toggle", HTMLButtonElement);
  const panel = part("panel", HTMLElement);
  const narrow = matchMedia(NARROW);
  /** @param {boolean} open */
  const show = (open) => {
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    document.body.classList.toggle("with-panel", open);
    for (const covered of part("talk", HTMLElement).children) {
      /** @type {HTMLElement} */ (covered).inert = open && narrow.matches; // no typing into a covered field
    }
  };
  const uncover = () => {
    if (!narrow.matches || panel.hidden) return false;
    show(false);
    button.focus();
    return true;
  };
  button.addEventListener("click", () => show(panel.hidden));
  narrow.addEventListener("change", () => show(!narrow.matches));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    if (uncover()) event.stopImmediatePropagation(); // the key closes the panel instead of interrupting the assistant
  });
  show(!narrow.matches);
  return { open: () => show(true), uncover };
}

/** Let the button open and close the menu of files; a choice, Escape or a click elsewhere closes it. */
export function installExports() {
  const button = part("download", HTMLButtonElement);
  const menu = part("exports", HTMLElement);
  /** @param {boolean} open */
  const show = (open) => {
    menu.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => show(menu.hidden));
  menu.addEventListener("click", () => {
    show(false);
    button.focus();
  });
  document.addEventListener("pointerdown", ({ target }) => {
    const inside = target instanceof Node && (menu.contains(target) || button.contains(target));
    if (!inside) show(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || menu.hidden) return;
    show(false);
    button.focus();
    event.stopImmediatePropagation(); // the key closes the menu instead of interrupting the assistant
  }, { capture: true });
}

/** Offer a file as a download. @param {import("./exports.js").SavedFile} file */
export function saveFile({ name, type, parts }) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // the browser has read it by then
}

/** Play two short tones: a timer is over. */
export function chime() {
  if (!("AudioContext" in globalThis)) return;
  const context = new AudioContext();
  for (const [at, pitch] of [[0, 880], [0.22, 1175]]) {
    const [tone, gain] = [new OscillatorNode(context, { frequency: pitch }), new GainNode(context, { gain: 0 })];
    const begin = context.currentTime + at;
    gain.gain.setValueAtTime(0, begin);
    gain.gain.linearRampToValueAtTime(0.15, begin + 0.02);
    gain.gain.exponentialRampToValueAtTime(0.001, begin + 0.5);
    tone.connect(gain).connect(context.destination);
    tone.start(begin);
    tone.stop(begin + 0.5);
  }
  setTimeout(() => void context.close(), 2000);
}
