/**
 * The choice of microphone and loudspeaker. Browsers name devices only after the microphone was allowed.
 *
 * `choicesOf` is pure; `Devices` keeps both lists in the page.
 */

import { part } from "./dom.js";

/** @typedef {{ id: string, label: string }} Choice */
/** @typedef {{ microphone: string, speaker: string, processing: boolean }} Chosen device ids, "" for the browser's */

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
  #wished = { microphone: "", speaker: "" }; // devices of an earlier visit that were not found yet

  /** @param {{ microphone: () => void, speaker: () => void }} chosen called when the person chose another */
  constructor(chosen) {
    this.#chosen = chosen;
    this.#processing.addEventListener("change", chosen.microphone);
    this.#mic.addEventListener("change", () => {
      this.#wished.microphone = "";
      chosen.microphone();
    });
    this.#speaker.addEventListener("change", () => {
      this.#wished.speaker = "";
      chosen.speaker();
    });
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

  /** Choose the devices of an earlier visit, as soon as the browser names them. @param {Chosen} chosen */
  restore({ microphone, speaker, processing }) {
    this.#processing.checked = processing;
    this.#wished = { microphone, speaker };
    void this.refresh();
  }

  /** The present choice. @returns {Chosen} */
  get chosen() {
    const { microphone, speaker } = this.#wished;
    return {
      microphone: this.#mic.value || microphone,
      speaker: this.#speaker.value || speaker,
      processing: this.#processing.checked,
    };
  }

  /** Ask the browser for its devices. */
  async refresh() {
    const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
    fill(this.#mic, choicesOf(devices, "audioinput"));
    const before = this.speaker;
    fill(this.#speaker, choicesOf(devices, "audiooutput"));
    if (this.speaker !== before) this.#chosen.speaker(); // it was unplugged; a microphone reports that itself
    if (take(this.#mic, this.#wished.microphone)) {
      this.#wished.microphone = "";
      this.#chosen.microphone();
    }
    if (take(this.#speaker, this.#wished.speaker)) {
      this.#wished.speaker = "";
      this.#chosen.speaker();
    }
  }
}

/** Choose a device if the list has it; return whether it does. @param {HTMLSelectElement} select @param {string} id */
function take(select, id) {
  const has = id !== "" && Array.from(select.options).some(({ value }) => value === id);
  if (has) select.value = id;
  return has;
}

/** @param {HTMLSelectElement} select @param {Choice[]} choices */
function fill(select, choices) {
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...choices.map(({ id, label }) => new Option(label, id)));
  select.value = choices.some(({ id }) => id === chosen) ? chosen : "";
}
