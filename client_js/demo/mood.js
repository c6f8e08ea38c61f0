/** The page's current mood: one name for its style and a few words for people. Pure. */

/** @typedef {import("../connection.js").Status} Status */
/** @typedef {import("../protocol.js").StateName} StateName */
/** @typedef {StateName | "idle" | "connecting" | "interrupted" | "over"} Mood */

/**
 * @typedef {object} Moment
 * @property {Status} status the connection's
 * @property {StateName} state the conversation's
 * @property {boolean} begun whether there was a conversation
 * @property {boolean} starting whether one was asked for and is not there yet
 * @property {boolean} asking whether the browser asks for the microphone
 * @property {number} sinceInterruptionMs Infinity: there was none
 * @property {boolean} keys whether people are told of keys
 * @property {{ muted: boolean, listening: boolean, pushToTalk: boolean, pressed: boolean }} microphone
 */

/** How long an interruption is shown, unless the person or the assistant speaks again before. */
export const INTERRUPTED_MS = 1500;

/** @param {Moment} moment @returns {Mood} */
export function moodOf({ status, state, begun, starting, asking, sinceInterruptionMs }) {
  if (status === "idle" || status === "closed") return starting ? "connecting" : begun ? "over" : "idle";
  if (status !== "open" || asking) return "connecting";
  const quiet = state === "listening" || state === "hearing";
  return quiet && sinceInterruptionMs < INTERRUPTED_MS ? "interrupted" : state;
}

/** @type {{ [mood in Mood]: string }} */
const WORDS = {
  idle: "Ready when you are",
  connecting: "Connecting…",
  listening: "Listening",
  hearing: "Hearing you",
  thinking: "Thinking",
  speaking: "Speaking",
  held: "Paused: listening to you",
  interrupted: "Interrupted",
  over: "The conversation has ended",
};

/** Return the mood in words. @param {Moment} moment */
export function wordsOf(moment) {
  const mood = moodOf(moment);
  const { muted, listening, pushToTalk, pressed } = moment.microphone;
  if (mood === "connecting" && moment.asking) return "Please allow the microphone";
  if (mood === "connecting" && moment.begun && !moment.starting) return "Connecting again…";
  if (mood !== "listening" && mood !== "hearing") return WORDS[mood];
  if (!listening) return mood === "listening" ? "Type to talk: the microphone is off" : WORDS.hearing;
  if (mood === "listening" && pushToTalk && !pressed) {
    return moment.keys ? "Hold space, or the button, to talk" : "Hold the button to talk";
  }
  return muted ? "Muted: you are not heard" : WORDS[mood];
}

/** Return whether there is something to interrupt, even if the connection is lost. @param {Moment} moment */
export function canInterrupt({ status, state }) {
  return status !== "idle" && status !== "closed" && state !== "listening" && state !== "hearing";
}

/** Return what the header says about a recording; "" if nothing is kept. @param {readonly string[]} recorded */
export function recordedWords(recorded) {
  if (!recorded.length) return "";
  if (!recorded.includes("audio")) return "Words are kept";
  return recorded.includes("transcript") ? "Recorded, with words" : "Recorded";
}

/** Return the connection's status as a word for the header. @param {Moment} moment */
export function linkOf({ status, starting }) {
  if (status === "open") return { link: "on", words: "Connected" };
  const trying = starting || (status !== "idle" && status !== "closed");
  return trying ? { link: "trying", words: "Connecting" } : { link: "off", words: "Offline" };
}
