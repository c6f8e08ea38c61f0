/** The page: a VoiceClient, a Session that drives it, and views that show it. Only wiring. */

import { browserEnvironment } from "../environment.js";
import { Memory, merge } from "../settings.js";
import { VoiceClient } from "../voice-client.js";
import { installAnnouncements } from "./announcer.js";
import { Banner } from "./banner.js";
import { Captions } from "./captions.js";
import { chime, hasKeys, installExports, installPanel, installTheme, saveFile } from "./chrome.js";
import { Controls } from "./controls.js";
import { Devices } from "./devices.js";
import { part } from "./dom.js";
import { asJson, asSrt, asText, baseName } from "./exports.js";
import { Figures } from "./figures.js";
import { LatencyBars } from "./latency.js";
import { EventLog } from "./log.js";
import { Meter } from "./meters.js";
import { answersSpeech, askModels, modelsReady, ModelsView } from "./models.js";
import { canInterrupt, INTERRUPTED_MS, linkOf, moodOf, recordedWords, wordsOf } from "./mood.js";
import { explain, Notices } from "./notices.js";
import { Orb } from "./orb.js";
import { Preferences } from "./preferences.js";
import { Recording } from "./recording.js";
import { probe, Session } from "./session.js";
import { configFor, offersOf, SettingsForm } from "./settings.js";
import { openStorage, StanceMemory } from "./storage.js";
import { Timeline } from "./timeline.js";
import { demoTools } from "./tools.js";

const KEY = "voxlane.key";

const main = part("talk", HTMLElement);
const key = part("key", HTMLInputElement);
const url = new URL("/v1/voice", location.href);
url.protocol = location.protocol === "https:" ? "wss:" : "ws:";

/** @type {import("../wire.js").CodecChoice[]} */
const CODECS = ["auto", "opus", "pcm16"];
const asked = new URLSearchParams(location.search);
const codec = CODECS.find((choice) => choice === asked.get("codec"));

const storage = openStorage(() => sessionStorage);
const stance = new StanceMemory(storage);
const preferences = new Preferences(openStorage(() => localStorage));
const client = new VoiceClient({ url, storage, key: () => key.value, codec });
Object.assign(globalThis, { voxlane: { client } });

const environment = browserEnvironment();
const { now } = environment;
const level = { input: 0, output: 0 };
let interruptedAt = -Infinity;
let shown = ""; // the mood that is shown
let listened = false; // whether the microphone was open at its last event
let due = false; // whether a redraw is scheduled
let recording = new Recording();
/** @type {Promise<import("./models.js").Listed | null>} What the server lists; null: it does not tell, or was restarted. */
let listing = Promise.resolve(null);
const timeline = new Timeline();

// ---- views

const captions = new Captions(part("captions", HTMLElement), part("lines", HTMLElement));
const bars = new LatencyBars(part("latency", HTMLElement));
const figures = new Figures();
const models = new ModelsView();
const log = new EventLog(part("log", HTMLElement));
const meters = { input: new Meter(part("meter-in", HTMLElement)), output: new Meter(part("meter-out", HTMLElement)) };
const orb = new Orb(part("orb", HTMLCanvasElement), drawLevels);
const panel = installPanel();
const announcer = installAnnouncements(part("announcer", HTMLElement));
const banner = new Banner(act, () => notices.dismiss());
const notices = new Notices((notice) => {
  banner.show(notice);
  announcer.notice(notice);
}, environment);

// ---- the conversation

const devices = new Devices({
  microphone: () => {
    preferences.write(devices.chosen);
    if (client.listening) void session.openMicrophone();
  },
  speaker: () => {
    preferences.write(devices.chosen);
    void session.useSpeaker(devices.speaker);
  },
});
const session = new Session(client, notices, {
  microphone: () => devices.microphone,
  speaker: () => devices.speaker,
  prepare,
  probe: () => probe(() => get("/healthz")),
  keyed: () => key.value !== "",
  changed: showMood,
  divide: (words) => captions.divide(words),
  setTimer: environment.setTimer,
});
const settings = new SettingsForm((changes) => {
  const applied = session.attempt(() => client.configure(changes));
  if (applied) preferences.write({ config: merge(preferences.read().config, changes) });
  return applied;
});
const controls = new Controls(client, session, (words) => announcer.say(words));

const pageTools = demoTools({
  now: () => new Date(),
  random: Math.random,
  setTimer: environment.setTimer,
  rang: (label) => {
    notices.tell("page", { ...explain("timer_rang"), text: `The timer of ${label} is over.` });
    chime();
  },
});

/** Carry out the action of a notice's button. @param {import("./notices.js").Action} action */
function act(action) {
  if (action === "retry") void session.begin();
  if (action === "microphone") void session.openMicrophone();
  if (action === "sound") void session.openSound();
  if (action !== "key") return;
  panel.open();
  part("settings", HTMLDetailsElement).open = true;
  key.focus();
}

// ---- the client's events

client.on("change", () => {
  if (due) return;
  due = true;
  setTimeout(draw, 40); // not requestAnimationFrame: a page in the background must go on too
});
client.on("level", (heard) => Object.assign(level, heard));
client.on("figures", (measured) => figures.show(measured, client.ready, now()));
client.on("microphone", ({ listening }) => {
  if (listening && !listened) void devices.refresh(); // it was allowed: now the browser tells device names
  if (!listening) level.input = 0;
  listened = listening;
  showMood();
});
client.on("message", (message) => {
  log.take(message);
  if (message.name === "configured") settings.show(message.config);
  if (message.name !== "interrupted") return;
  interruptedAt = now();
  setTimeout(showMood, INTERRUPTED_MS + 20);
});
client.on("ready", ({ ready, how }) => {
  if (how !== "resumed") recording = new Recording(); // another conversation
  timeline.skip(client.state.lines);
  models.show(modelsReady(ready.capabilities));
  settings.offer(offersOf(ready.capabilities));
  settings.show(ready.config);
  announcer.skip(client.state.lines);
  showRecorded(ready.recorded);
});
client.on("status", ({ status, attempt }) => log.add(`connection ${status}${attempt ? `, attempt ${attempt}` : ""}`));
client.on("fault", ({ code, message }) => log.add(`${code}: ${message}`, "fault"));
client.on("over", ({ code, closeCode }) => {
  listing = Promise.resolve(null);
  if (closeCode === 4400) { // the server refuses them: the next page must not ask again
    preferences.write({ config: {}, tools: false });
    part("tools", HTMLInputElement).checked = false;
  }
  log.add(`over: ${code} (${closeCode})`);
  showRecorded([]);
});

// ---- drawing

function draw() {
  due = false;
  timeline.observe(client.state.lines, Date.now());
  captions.show(client.state.lines, (id) => timeline.of(id)?.startMs);
  announcer.lines(client.state.lines, { audible: session.sounds && !client.silenced });
  bars.show(client.state.turns);
  main.classList.toggle("empty", !client.state.lines.length);
  part("download", HTMLButtonElement).disabled = !client.state.lines.length;
  showMood();
}

function drawLevels() {
  const time = now();
  meters.input.show(client.listening ? level.input : 0, time);
  meters.output.show(session.busy ? level.output : 0, time);
  return { input: meters.input.value / 100, output: meters.output.value / 100 };
}

/** Say in the header that the conversation is recorded. @param {readonly string[]} recorded */
function showRecorded(recorded) {
  const words = recordedWords(recorded);
  Object.assign(part("recorded", HTMLElement), { textContent: words, hidden: !words });
}

function showMood() {
  const focused = document.activeElement;
  const { status, muted, pushToTalk, pressed } = client;
  const { begun, starting, asking, listening } = session;
  const microphone = { muted, listening, pushToTalk, pressed };
  const sinceInterruptionMs = now() - interruptedAt;
  controls.show(microphone);
  if (!session.starting) stance.write(microphone);
  const { state } = client.state;
  const moment = { status, state, begun, starting, asking, sinceInterruptionMs, microphone, keys: hasKeys() };
  const mood = moodOf(moment);
  const words = wordsOf(moment);
  if (part("state", HTMLElement).textContent !== words) part("state", HTMLElement).textContent = words;
  part("start", HTMLButtonElement).disabled = session.busy;
  controls.allowInterrupt(canInterrupt(moment));
  if (mood === shown) return;
  shown = mood;
  main.dataset.state = mood;
  part("start-words", HTMLElement).textContent = mood === "over" ? "Start again" : "Start talking";
  const { link, words: linkWords } = linkOf(moment);
  Object.assign(part("link", HTMLElement), { textContent: linkWords }).dataset.link = link;
  announcer.link(link);
  controls.refocus(focused, mood !== "idle" && mood !== "over");
  orb.restyle(mood);
}

// ---- the rest of the page

installTheme(() => orb.restyle(shown || "idle"));
installExports();
installPreferences();
key.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault(); // the click is not meant for the assistant's settings
  panel.uncover();
  void session.begin();
});
part("events", HTMLDetailsElement).addEventListener("toggle", () => log.scroll());
part("log-clear", HTMLButtonElement).addEventListener("click", () => log.clear());
for (const [id, make] of Object.entries({ "save-text": asText, "save-json": asJson, "save-srt": asSrt })) {
  part(id, HTMLButtonElement).addEventListener("click", () => saveFile(make(talk())));
}
part("save-wav", HTMLButtonElement).addEventListener("click", () => {
  saveFile({ name: `${baseName(new Date())}.wav`, type: "audio/wav", parts: recording.wav() });
});
part("download", HTMLButtonElement).addEventListener("click", () => {
  part("save-wav", HTMLButtonElement).disabled = recording.empty;
  const hint = recording.empty ? "WAV: turn it on in the settings" : "WAV: you left, the assistant right";
  part("wav-hint", HTMLElement).textContent = hint;
});
// Browsers count a touch when the finger is lifted. After a telephone call the sound may be suspended.
for (const name of ["pointerdown", "pointerup", "keydown", "visibilitychange"]) {
  document.addEventListener(name, () => {
    if (client.silenced && session.busy && !document.hidden) void session.openSound();
  });
}
/** Return the conversation as a file needs it. @returns {import("./exports.js").Talk} */
function talk() {
  const lines = client.state.lines.map((line) => ({ ...line, span: timeline.of(line.id) }));
  const first = lines.find(({ span }) => span !== null)?.span?.startMs;
  return { lines, zeroMs: recording.zeroMs ?? first ?? 0, models: models.models, now: new Date() };
}

/** Bring the settings of an earlier visit back, and keep the changes. */
function installPreferences() {
  const kept = preferences.read();
  const [keepKey, tools, record] = ["keep-key", "tools", "record"].map((id) => part(id, HTMLInputElement));
  const useRecorder = () => client.record(record.checked ? (piece) => recording.push(piece, Date.now()) : null);
  const keepTheKey = () => {
    storage.setItem(KEY, key.value);
    preferences.write({ key: keepKey.checked ? key.value : "" });
  };
  key.value = storage.getItem(KEY) || kept.key;
  keepKey.checked = kept.key !== "";
  tools.checked = kept.tools;
  record.checked = kept.recording;
  devices.restore(kept);
  settings.restore(kept.config);
  if (record.checked) useRecorder();
  for (const field of [key, keepKey]) field.addEventListener("input", keepTheKey);
  tools.addEventListener("change", () => {
    preferences.write({ tools: tools.checked });
    session.attempt(() => client.setTools(tools.checked ? pageTools : {}));
  });
  record.addEventListener("change", () => {
    preferences.write({ recording: record.checked });
    useRecorder();
  });
  part("forget", HTMLButtonElement).addEventListener("click", () => {
    preferences.forget();
    storage.removeItem(KEY);
    key.value = "";
    keepKey.checked = false;
    part("forgotten", HTMLElement).textContent = "Forgotten: they are gone when you reload the page";
  });
}

/** @param {string} path @param {Record<string, string>} [headers] */
function get(path, headers = {}) {
  return fetch(path, { cache: "no-store", headers });
}

/** Show the server's models and voices before there is a conversation, if it tells; return what it lists. */
async function showModels() {
  const listed = await askModels(get, key.value);
  if (listed === null || client.ready !== null) return listed;
  const { models: names, voices, languages, instructed } = listed;
  models.show(names);
  // `ready` will say whether the speed can be chosen.
  settings.offer({ voices, languages, instructed, paced: false, own: names.speech !== "" });
  return listed;
}

/** Ask for the settings of earlier visits, without those that the server refuses: another server may have had them. */
async function prepare() {
  const listed = await listing;
  const own = listed === null ? await answersSpeech(get) : listed.models.speech !== "";
  const { config, tools } = preferences.read();
  const asked = configFor(config, own);
  if (Object.keys(asked).length) session.attempt(() => client.configure(asked));
  if (tools && !own) session.attempt(() => client.setTools(pageTools));
}

listing = showModels();
if (!globalThis.isSecureContext) notices.tell("sound", explain("insecure_origin"));
if (asked.get("processing") === "off") devices.process(false);
if (new Memory(storage, String(url)).read()) {
  const { listening, muted } = stance.read();
  void session.begin({ returning: true, microphone: listening });
  client.mute(muted); // before the microphone opens, so that no word gets out
} else {
  showMood();
}
