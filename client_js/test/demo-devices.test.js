import assert from "node:assert/strict";
import { test } from "node:test";

// The page's elements for choosing devices, as far as they are used.
class Element extends EventTarget {
  value = "";
  hidden = false;
  checked = true;
  options = [{ value: "" }];
  replaceChildren(...options) {
    this.options = options;
  }
}
class HTMLSelectElement extends Element {}
class HTMLInputElement extends Element {}
const parts = {
  mic: new HTMLSelectElement(), speaker: new HTMLSelectElement(), processing: new HTMLInputElement(),
  "speaker-row": new Element(),
};
const Option = class {
  constructor(label, value) {
    Object.assign(this, { label, value });
  }
};
const document = { getElementById: (id) => parts[id] };
Object.assign(globalThis, { document, HTMLElement: Element, HTMLSelectElement, HTMLInputElement, Option });

let plugged = [];
const mediaDevices = Object.assign(new EventTarget(), { enumerateDevices: async () => plugged });
Object.defineProperty(globalThis, "navigator", { value: { mediaDevices }, configurable: true });

const { Devices } = await import("../demo/devices.js");
const device = (kind, deviceId) => ({ kind, deviceId, label: deviceId });

test("a loudspeaker that is unplugged gives way to the browser's choice; the others stay chosen", async () => {
  const chosen = [];
  const devices = new Devices({ microphone: () => chosen.push("mic"), speaker: () => chosen.push(devices.speaker) });
  plugged = [device("audioinput", "headset"), device("audiooutput", "headset"), device("audiooutput", "screen")];
  await devices.refresh();
  parts.speaker.value = "screen";
  parts.mic.value = "headset";
  plugged.shift();
  await devices.refresh();
  assert.equal(devices.speaker, "screen");
  assert.equal(devices.microphone.deviceId, undefined);
  assert.deepEqual(chosen, []); // the microphone reports its end itself
  plugged.pop();
  await devices.refresh();
  assert.deepEqual(chosen, [""]);
});
