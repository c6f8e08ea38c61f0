/** Errors that a page should explain: `code` names the error, `message` is for a person. */

/** @type {{ [code: string]: string }} */
const TEXTS = {
  insecure_origin: "Browsers give the microphone only to pages from https or from this machine.",
  microphone_refused: "The microphone was not allowed. Allow it in the browser's settings of this page and try again.",
  microphone_missing: "No microphone was found.",
  microphone_busy: "The microphone cannot be opened: another program may be using it.",
  microphone_lost: "The microphone was unplugged or taken away.",
  microphone_closed: "The microphone was closed before it was open.",
  no_worklet: "This browser is too old for voice: it has no AudioWorklet.",
  sound_closed: "The loudspeaker was closed before it was open.",
  sound_failed: "The browser could not set up its sound. Load the page again.",
  codec_failed: "This browser's Opus codec failed. The conversation begins anew without it.",
  closed: "It was closed before there was a conversation.",
  connected_already: "There is a connection to the server already.",
  not_connected: "There is no connection to the server.",
  too_long: "That is longer than the server takes.",
};

/** An error with a code: one of the above, or a connection's ending. */
export class VoiceError extends Error {
  name = "VoiceError";

  /**
   * @param {string} code
   * @param {string} [message]
   * @param {ErrorOptions} [options]
   */
  constructor(code, message, options) {
    super(message || TEXTS[code] || code, options);
    this.code = code;
  }
}

/**
 * Return the result of `make`; if it is too long, throw an error in our own words.
 * @template T
 * @param {() => T} make
 */
export function fit(make) {
  try {
    return make();
  } catch (error) {
    if (error instanceof RangeError) throw new VoiceError("too_long", undefined, { cause: error });
    throw error;
  }
}

/** Return the error for a browser's refusal of the microphone. @param {unknown} error */
export function microphoneError(error) {
  const name = error instanceof Error || error instanceof DOMException ? error.name : "";
  const refused = name === "NotAllowedError" || name === "SecurityError";
  const missing = name === "NotFoundError" || name === "OverconstrainedError";
  const code = refused ? "microphone_refused" : missing ? "microphone_missing" : "microphone_busy";
  return new VoiceError(code, undefined, { cause: error });
}
