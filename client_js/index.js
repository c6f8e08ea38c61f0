/** The browser client of voxlane: `VoiceClient`, and its parts for programs that combine them in another way. */

export { BrowserAudio } from "./audio.js";
export { browserEnvironment, Connection } from "./connection.js";
export { VoiceError } from "./errors.js";
export { JitterBuffer } from "./jitter.js";
export { judgeClose, parseMessage, ProtocolError, say, SUBPROTOCOL } from "./protocol.js";
export { Resampler } from "./resample.js";
export { ConversationState } from "./state.js";
export { VoiceClient } from "./voice-client.js";
