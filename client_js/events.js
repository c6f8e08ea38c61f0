/** The events of a VoiceClient, by name; each is the type of the event's `detail`. */

/** @typedef {import("./protocol.js").ServerMessage} ServerMessage */
/** @typedef {import("./protocol.js").Ready} Ready */
/** @typedef {import("./state.js").ConversationState} ConversationState */

/**
 * @typedef {object} Figures
 * @property {number} roundTripMs -1: not measured yet
 * @property {number} bufferMs sound that waits to be played
 * @property {number} targetMs buffered sound with which a reply begins
 * @property {number} underruns
 * @property {number} starvedMs silence caused by underruns
 * @property {number} droppedMs microphone sound dropped because the connection was too slow
 * @property {number} outputLatencyMs
 */

/**
 * @typedef {object} ToolCall
 * @property {string} callId
 * @property {string} name
 * @property {string} arguments JSON as text
 * @property {(output: unknown) => void} answer call it once
 */

/** @typedef {{ role: "user" | "assistant", samples: Float32Array, rate: number }} SoundPiece one side's sound */

/**
 * @typedef {object} VoiceEvents
 * @property {import("./connection.js").StatusChange} status the connection's
 * @property {{ ready: Ready, how: "first" | "resumed" | "anew" }} ready `anew`: the old conversation is gone
 * @property {ServerMessage} message every message, as it comes
 * @property {ConversationState} change captions, state or latencies have changed
 * @property {{ input: number, output: number }} level loudness of both sides, 0 to 1
 * @property {Figures} figures ten times a second while the loudspeaker is open
 * @property {ToolCall} toolcall a call of a tool that has no function
 * @property {{ muted: boolean, listening: boolean, pushToTalk: boolean, pressed: boolean }} microphone
 * @property {{ silenced: boolean }} sound the browser has suspended the sound, or resumed it
 * @property {import("./errors.js").VoiceError} fault something failed; other events tell the consequences
 * @property {import("./connection.js").Ending} over the conversation has ended
 */

/** @type {Readonly<Figures>} The figures before anything was measured. */
export const NO_FIGURES = {
  roundTripMs: -1, bufferMs: 0, targetMs: 0, underruns: 0, starvedMs: 0, droppedMs: 0, outputLatencyMs: 0,
};

/** An EventTarget with the names and details of `VoiceEvents`. */
export class VoiceTarget extends EventTarget {
  /**
   * Call a function at every event of a name; return a function that ends that.
   * @template {keyof VoiceEvents} Name
   * @param {Name} name
   * @param {(detail: VoiceEvents[Name]) => void} listener
   * @returns {() => void}
   */
  on(name, listener) {
    /** @param {Event} event */
    const heard = (event) => listener(/** @type {CustomEvent} */ (event).detail);
    this.addEventListener(name, heard);
    return () => this.removeEventListener(name, heard);
  }

  /**
   * @template {keyof VoiceEvents} Name
   * @param {Name} name
   * @param {VoiceEvents[Name]} detail
   */
  tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
