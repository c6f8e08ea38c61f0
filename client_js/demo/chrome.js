/** Around the conversation: light and dark, the side panel, the transcript as a file. */

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
    part("talk", HTMLElement).inert = open && narrow.matches; // no typing into a covered field
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

/** Return a transcript's text and its file's name. @param {string} lines @param {Date} now */
export function transcriptFile(lines, now) {
  const day = now.toISOString().slice(0, 16).replace("T", " ");
  const spoken = lines.replaceAll(/^user:/gm, "You:").replaceAll(/^assistant:/gm, "Assistant:");
  const text = `A conversation with voxlane, ${day} UTC\nIn brackets: what was not heard.\n\n${spoken}\n`;
  return { text, name: `voxlane-${day.replace(" ", "-").replace(":", "")}.txt` };
}

/** Offer a text as a download. @param {{ text: string, name: string }} file */
export function saveFile({ text, name }) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000); // the browser has read it by then
}
