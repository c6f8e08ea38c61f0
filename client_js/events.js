/** What a VoiceClient tells, by the name of the event; `detail` holds it. */

/** @typedef {import("./protocol.js").ServerMessage} ServerMessage */
/** @typedef {import("./protocol.js").Ready} Ready */
/** @typedef {import("./state.js").ConversationState} ConversationState */

/**
 * @typedef {object} Figures
 * @property {number} roundTripMs -1: not measured yet
 * @property {number} bufferMs sound that waits to be played
 * @property {number} targetMs sound that a reply begins with
 * @property {number} underruns
 * @property {number} starvedMs silence that they cost
 * @property {number} droppedMs of the microphone, that the line was too slow for
 * @property {number} outputLatencyMs
 */

/**
 * @typedef {object} ToolCall
 * @property {string} callId
 * @property {string} name
 * @property {string} arguments JSON as text
 * @property {(output: unknown) => void} answer to be called once
 */

/**
 * @typedef {object} VoiceEvents
 * @property {import("./connection.js").StatusChange} status the connection's
 * @property {{ ready: Ready, how: "first" | "resumed" | "anew" }} ready `anew`: the old one is forgotten
 * @property {ServerMessage} message every message, as it comes
 * @property {ConversationState} change captions, state or latencies are not what they were
 * @property {{ input: number, output: number }} level loudness of both sides, 0 to 1
 * @property {Figures} figures ten times a second while the loudspeaker is open
 * @property {ToolCall} toolcall a call of a tool that was not given a function
 * @property {{ muted: boolean, listening: boolean, pushToTalk: boolean, pressed: boolean }} microphone
 * @property {{ silenced: boolean }} sound the browser has put the sound to sleep, or has woken it
 * @property {import("./errors.js").VoiceError} fault something failed; what follows from it is told by other events
 * @property {import("./connection.js").Ending} over the conversation has ended
 */

/** @type {Readonly<Figures>} What is known before anything was measured. */
export const NO_FIGURES = {
  roundTripMs: -1, bufferMs: 0, targetMs: 0, underruns: 0, starvedMs: 0, droppedMs: 0, outputLatencyMs: 0,
};

/** An EventTarget with the names and details of `VoiceEvents`. */
export class VoiceTarget extends EventTarget {
  /**
   * Call a function at every event of a name; return what ends that.
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
