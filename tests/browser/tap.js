/**
 * What a test hears and reads in the page: each sample of the microphone and at the loudspeaker, by the clock of their
 * context, and everything that the client tells. It runs before the page's own code, and changes nothing of the sound.
 *
 * `tap.ducking = false` keeps the loudspeaker from going quiet on suspicion: its samples are then the reply's.
 */
(() => {
  const WORKLET = "/tap-worklet.js"; // served by the test
  const LEAST_HOLD_MS = 100; // a busy page may learn of a hold and of its end at once
  const EVENTS = new Set(["message", "ready", "status", "over", "fault"]);

  /** @type {{ context: AudioContext, input: object[], output: object[] } | null} Of the context that came last. */
  let sound = null;
  /** @type {{ event: string, frame: number, detail: any }[]} */
  const told = [];
  /** @type {string[]} Those that the page has shown, however briefly. */
  const states = [];
  /** @type {string[]} */
  const violations = [];
  /** @type {Map<BaseAudioContext, Promise<void>>} */
  const loading = new Map();

  let held = Promise.resolve();

  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    const result = connect.call(this, target, ...rest);
    if (target instanceof AudioDestinationNode) void record(this, "output");
    if (this instanceof MediaStreamAudioSourceNode) void record(this, "input");
    return result;
  };

  /** @param {AudioNode} node @param {"input" | "output"} side */
  async function record(node, side) {
    const context = /** @type {AudioContext} */ (node.context);
    if (sound?.context !== context) sound = { context, input: [], output: [] };
    const blocks = sound[side];
    if (!loading.has(context)) loading.set(context, context.audioWorklet.addModule(WORKLET));
    await loading.get(context);
    const options = { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" };
    const recorder = new AudioWorkletNode(context, "tap", options);
    recorder.port.onmessage = ({ data }) => blocks.push(data);
    connect.call(node, recorder);
  }

  const post = MessagePort.prototype.postMessage;
  MessagePort.prototype.postMessage = function (message, ...rest) {
    if (message?.do === "duck" && !tap.ducking) return;
    if (message?.do === "release") {
      void held.then(() => {
        note("released", {}); // before it is asked for: the page may be told much later
        post.call(this, message, ...rest);
      });
      return;
    }
    post.call(this, message, ...rest);
    if (message?.do !== "hold") return;
    held = new Promise((over) => {
      // The player answers after it has held: from that position on all is silent.
      this.addEventListener("message", ({ data }) => {
        if (!data.position) return;
        note("stopped", data.position);
        setTimeout(over, LEAST_HOLD_MS);
      });
    });
    post.call(this, { do: "position" });
  };

  /** @param {string} event @param {object} detail */
  function note(event, detail) {
    const frame = Math.round((sound?.context.currentTime ?? 0) * (sound?.context.sampleRate ?? 0));
    told.push({ event, frame, detail });
  }

  const dispatch = EventTarget.prototype.dispatchEvent;
  EventTarget.prototype.dispatchEvent = function (event) {
    if (event instanceof CustomEvent && EVENTS.has(event.type)) {
      const { code, message } = event.detail;
      note(event.type, event.type === "fault" ? { code, message } : event.detail);
    }
    return dispatch.call(this, event);
  };

  const watch = new MutationObserver(([{ target }]) => states.push(target.dataset.state));
  watch.observe(document, { subtree: true, attributeFilter: ["data-state"] });

  document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sourceFile }) => {
    violations.push(`${violatedDirective} ${blockedURI} ${sourceFile}`);
  });

  /** @param {ArrayBufferView} view */
  function base64(view) {
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    let text = "";
    for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
    return btoa(text);
  }

  const tap = {
    ducking: true,

    /** Return all that one side has sounded up to now. @param {"input" | "output"} side */
    async sound(side) {
      if (sound === null) return null;
      const { context, [side]: blocks } = sound;
      const now = context.currentTime * context.sampleRate;
      const end = ({ began, offset, samples }) => began + offset + samples.length;
      const behind = () => !blocks.length || end(blocks.at(-1)) < now;
      for (let turn = 0; turn < 500 && behind(); turn++) await new Promise((then) => setTimeout(then, 20));
      const pieces = blocks.map(({ samples, ...place }) => ({ ...place, samples: base64(samples) }));
      return { rate: context.sampleRate, latency: context.outputLatency + context.baseLatency, pieces };
    },

    /** Return what the client has told, sound as text. */
    told() {
      return told.map((one) => JSON.parse(JSON.stringify(one, (_, v) => (ArrayBuffer.isView(v) ? base64(v) : v))));
    },

    /** Return how many messages of a name came. @param {string} name */
    count: (name) => told.filter(({ event, detail }) => event === "message" && detail.name === name).length,

    states: () => states,
    violations: () => violations,
  };
  window.tap = tap;
})();
