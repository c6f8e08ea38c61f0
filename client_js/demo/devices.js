/**
 * The choice of microphone and loudspeaker. Browsers name devices only after the microphone was allowed.
 *
 * `choicesOf` is pure; `Devices` keeps both lists in the page.
 */

import { part } from "./dom.js";

/** @typedef {{ id: string, label: string }} Choice */

/**
 * Return the devices of a kind that can be chosen.
 * @param {readonly Pick<MediaDeviceInfo, "kind" | "deviceId" | "label">[]} devices
 * @param {MediaDeviceKind} kind
 * @returns {Choice[]}
 */
export function choicesOf(devices, kind) {
  return devices
    .filter((device) => device.kind === kind && device.deviceId !== "" && device.deviceId !== "default")
    .map(({ deviceId, label }, place) => ({ id: deviceId, label: label || `Number ${place + 1}` }));
}

/** Both lists in the page. */
export class Devices {
  #mic = part("mic", HTMLSelectElement);
  #speaker = part("speaker", HTMLSelectElement);
  #processing = part("processing", HTMLInputElement);
  #chosen;

  /** @param {{ microphone: () => void, speaker: () => void }} chosen called when the person chose another */
  constructor(chosen) {
    this.#chosen = chosen;
    this.#mic.addEventListener("change", chosen.microphone);
    this.#processing.addEventListener("change", chosen.microphone);
    this.#speaker.addEventListener("change", chosen.speaker);
    // Firefox and Safari choose the loudspeaker by themselves.
    part("speaker-row", HTMLElement).hidden = !("AudioContext" in globalThis && "setSinkId" in AudioContext.prototype);
    navigator.mediaDevices?.addEventListener("devicechange", () => void this.refresh());
  }

  /** Return the options for opening the microphone. @returns {import("../audio.js").MicrophoneOptions} */
  get microphone() {
    const on = this.#processing.checked;
    const device = this.#mic.value ? { deviceId: this.#mic.value } : {};
    return { ...device, echoCancellation: on, noiseSuppression: on, autoGainControl: on };
  }

  /** The loudspeaker that was chosen. */
  get speaker() {
    return this.#speaker.value;
  }

  /** @param {boolean} on */
  process(on) {
    this.#processing.checked = on;
  }

  /** Ask the browser for its devices. */
  async refresh() {
    const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
    fill(this.#mic, choicesOf(devices, "audioinput"));
    const before = this.speaker;
    fill(this.#speaker, choicesOf(devices, "audiooutput"));
    if (this.speaker !== before) this.#chosen.speaker(); // it was unplugged; a microphone reports that itself
  }
}

/** @param {HTMLSelectElement} select @param {Choice[]} choices */
function fill(select, choices) {
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...choices.map(({ id, label }) => new Option(label, id)));
  select.value = choices.some(({ id }) => id === chosen) ? chosen : "";
}
