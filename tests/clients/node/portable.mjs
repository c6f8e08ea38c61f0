// What the scripts of clients in JavaScript share, in Node and in a browser.

export const INSTRUCTIONS = 'You are a friendly voice assistant. Answer in one short sentence.';
export const SKY = 'What color is the sky on a clear day?';
export const ASKED = 'What is the weather in Paris?';
export const FORECAST = 'It is raining in Paris, 11 degrees.';
export const CHAT_MODEL = 'smollm2-135m-instruct';
export const MAX_TOKENS = 30;
export const LISTENS_MS = 800;
export const RATE = 24_000;

const SCENARIO_MS = 60_000;
const FRAME_MS = 40;
const FRAME_BYTES = (RATE * FRAME_MS * 2) / 1000;

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Play a scenario; return what the user has seen of it, or why it failed. */
export async function told(scenario, place) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('the scenario did not end in time')), SCENARIO_MS);
  });
  try {
    return { seen: await Promise.race([scenario(place), late]) };
  } catch (error) {
    return { failed: error.stack ?? JSON.stringify(error) };
  } finally {
    clearTimeout(timer);
  }
}

/** Counts what a client tells, so that a scenario can wait for it. */
export class News {
  #waiting = [];
  #failure;
  counts = {};
  last = {};

  note(name, value) {
    this.counts[name] = (this.counts[name] ?? 0) + 1;
    this.last[name] = value;
    this.#waiting = this.#waiting.filter((check) => !check());
  }

  /** End every wait, now and later, with an error. */
  fail(error) {
    this.#failure ??= error;
    this.#waiting = this.#waiting.filter((check) => !check());
  }

  /** Wait until something has been told so many times since the beginning; return what it was about. */
  until(name, count = 1) {
    return new Promise((resolve, reject) => {
      const check = () => {
        if (this.#failure) return (reject(this.#failure), true);
        return (this.counts[name] ?? 0) >= count && (resolve(this.last[name]), true);
      };
      if (!check()) this.#waiting.push(check);
    });
  }
}

/** A microphone in real time: silence, and clips that are said into it. */
export class Microphone {
  #queued = [];
  #open = true;

  say(pcm) {
    for (let at = 0; at < pcm.length; at += FRAME_BYTES) this.#queued.push(pcm.subarray(at, at + FRAME_BYTES));
  }

  close() {
    this.#open = false;
  }

  async run(send) {
    for (let due = Date.now(); this.#open; due += FRAME_MS) {
      const frame = new Uint8Array(FRAME_BYTES);
      frame.set(this.#queued.shift() ?? []);
      send(frame);
      await sleep(Math.max(0, due + FRAME_MS - Date.now()));
    }
  }
}

/** Plays each reply as it comes, after the one before it, and knows how much of it has been heard. */
export class Player {
  #item = '';
  #began = 0;
  #ends = 0;

  take(item, bytes) {
    const at = Math.max(this.#ends, Date.now());
    if (item !== this.#item) [this.#item, this.#began] = [item, at];
    this.#ends = at + (bytes / 2 / RATE) * 1000;
  }

  /** Fall silent; return the truncation that the server is to be told, if there was something left to play. */
  stop() {
    const now = Date.now();
    if (now >= this.#ends) return undefined;
    this.#ends = now;
    return { item_id: this.#item, content_index: 0, audio_end_ms: Math.max(0, Math.floor(now - this.#began)) };
  }
}

export const WEATHER = {
  type: 'function',
  name: 'get_weather',
  description: 'Get the current weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

/** Return a typed message of the person. */
export const typed = (text) => ({ type: 'message', role: 'user', content: [{ type: 'input_text', text }] });

/** Return the words of a response's message. */
export const said = ({ output }) => output[0].content[0].transcript ?? output[0].content[0].text;
