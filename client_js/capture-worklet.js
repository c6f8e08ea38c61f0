/**
 * The microphone's audio thread: it passes the sound card's blocks to `Capture` and the frames to the page.
 *
 * The page sends {muted}, with {rate, frameSamples} to change the frames from now on, and {over} at the end: a
 * processor lives until its `process` returns false.
 */

import { Capture } from "./capture.js";

class CaptureProcessor extends AudioWorkletProcessor {
  #capture;
  #over = false;

  /** @param {AudioWorkletNodeOptions} options */
  constructor(options) {
    super();
    const { rate, frameSamples } = options.processorOptions;
    this.#capture = new Capture(sampleRate, rate, frameSamples);
    this.port.onmessage = ({ data }) => {
      if (data.rate) this.#capture = new Capture(sampleRate, data.rate, data.frameSamples);
      this.#capture.muted = Boolean(data.muted);
      this.#over = Boolean(data.over);
    };
  }

  /** @param {Float32Array[][]} inputs */
  process(inputs) {
    if (this.#over) return false;
    const channels = inputs[0];
    if (!channels.length) return true; // the device is starting or changing
    for (const frame of this.#capture.push(mono(channels))) this.port.postMessage(frame, [frame.pcm.buffer]);
    return true;
  }
}

/** @param {Float32Array[]} channels */
function mono(channels) {
  if (channels.length === 1) return channels[0];
  const mixed = new Float32Array(channels[0].length);
  for (const channel of channels) channel.forEach((value, place) => (mixed[place] += value / channels.length));
  return mixed;
}

registerProcessor("voxlane-capture", CaptureProcessor);
