/**
 * Many conversations over lines that die unnoticed, in one direction or both, at any moment. Whatever breaks, each text
 * arrives once and in order, an interruption that came last takes effect, and the server knows the button's state.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { decode } from "../msgpack.js";
import { begin } from "./client.js";
import { FakeSocket, settle } from "./fakes.js";
import { chance, readyMap, whole } from "./support.js";

const SEEDS = 150;
const MANUAL = { config: { turns: { mode: "manual" } } };

/** A server as in docs/protocol.md: it answers everything at once, and a reply lasts until it is interrupted. */
class Server {
  texts = [];
  pressed = false;
  state = "listening";
  reply = { epoch: 0, of: null }; // null: no reply
  #line = null;
  #sequence = 0;
  #turn = 0;
  #told = []; // numbered
  #waiting = []; // for a line

  take(line, [name, value]) {
    if (name === "hello") return this.#greet(line, value);
    if (line !== this.#line) return undefined; // the line is an old one
    if (name === "text") this.#answer(this.texts[this.texts.push(value) - 1]);
    if (name === "stop") this.#cut();
    if (name === "start") this.#press();
    if (name === "end" && this.pressed) {
      this.pressed = false;
      this.#answer("spoken", this.#turn);
    }
    if (name === "ping") this.#tell("pong", value, 0);
    const state = this.pressed ? "hearing" : this.reply.of === null ? "listening" : "speaking";
    if (state !== this.state) this.#tell("state", (this.state = state));
    return undefined;
  }

  #greet(line, { resume, last_seq: lastSeq }) {
    this.#line = line;
    const values = { ...MANUAL, token: `token-${++this.#sequence}`, resumed: Boolean(resume), state: this.state };
    line.incoming.push(["ready", this.#sequence, readyMap(values)]);
    line.incoming.push(...this.#told.filter(([, seq]) => seq > lastSeq));
    for (const message of this.#waiting.splice(0)) this.#tell(...message);
  }

  #tell(name, ...fields) {
    if (this.#line === null || this.#line.closed) return void this.#waiting.push([name, ...fields]);
    const message = [name, ++this.#sequence, ...fields];
    this.#told.push(message);
    return void this.#line.incoming.push(message);
  }

  #cut() {
    if (this.reply.of !== null) this.#tell("interrupted", this.reply.epoch, "", 0);
    this.reply.of = null;
  }

  #press() {
    this.#cut();
    if (!this.pressed) this.#tell("speech_started", (this.#turn += 1), 0);
    this.pressed = true;
  }

  #answer(text, turn = (this.#turn += 1)) {
    this.#cut();
    this.#tell("user_turn", turn, text);
    this.reply = { epoch: this.reply.epoch + 1, of: text };
    this.#tell("reply", this.reply.epoch, turn);
    this.#tell("audio", this.reply.epoch, 0, new Uint8Array(480), []);
  }
}

/** Messages under way in both directions; they may be lost. */
class Line extends FakeSocket {
  outgoing = [];
  incoming = [];
  deaf = false; // the server's messages are lost
  dumb = false; // the client's messages are lost

  constructor(server) {
    super("", []);
    this.server = server;
  }

  send(data) {
    this.outgoing.push(decode(data));
  }

  async flow(most = Infinity) {
    for (let count = 0; count < most && (this.outgoing.length || this.incoming.length); count++) {
      const [said, told] = [this.outgoing.shift(), this.incoming.shift()];
      if (said && !this.dumb) this.server.take(this, said);
      if (told && !this.deaf) this.tell(...told);
      await settle();
    }
  }
}

/** What a person does: a text, null for an interruption, or the button's new state. */
function act(client, random, acts) {
  const what = whole(random, 0, 4);
  if (what <= 1) client.say(acts[acts.push(`text ${acts.length}`) - 1]);
  else if (what === 2) void client.interrupt(acts.push(null));
  else if (client.pressed) client.release(acts.push(false));
  else client.press(acts.push(true));
}

async function converse(seed) {
  const random = chance(seed);
  const { world, client, audio } = await begin({}, { connected: false });
  const server = new Server();
  const acts = [];
  world.network = () => new Line(server);
  await client.listen();
  void client.connect();
  world.socket.open();
  await settle();
  await world.socket.flow();
  for (let step = 0; step < 40 || client.status !== "open" || world.socket.deaf || world.socket.dumb; step++) {
    const what = step < 30 ? whole(random, 0, 7) : 7; // then nothing more breaks
    if (client.status === "connecting") world.socket.open();
    await settle();
    if (what <= 2) act(client, random, acts);
    else if (what === 3) await world.socket.flow(whole(random, 1, 3));
    else if (what === 4) Object.assign(world.socket, { deaf: true, dumb: world.socket.dumb || random() < 0.8 });
    else if (what === 5) await world.clock.pass(3000);
    else await world.socket.flow();
    if ((what === 6 || step >= 30) && world.socket.deaf) world.socket.drop();
    await world.clock.pass(step < 30 ? 0 : 4000);
  }
  return { acts, server, client, audio };
}

test("whatever breaks, what was said arrives once, in its order, and the last word counts", async () => {
  for (let seed = 1; seed <= SEEDS; seed++) {
    const { acts, server, client, audio } = await converse(seed);
    const typed = acts.filter((one) => typeof one === "string");
    const history = `seed ${seed}: ${JSON.stringify(acts)}, and the server got ${JSON.stringify(server.texts)}`;
    const arrived = typed.filter((text) => server.texts.includes(text));
    assert.deepEqual(server.texts, arrived, `twice or disordered: ${history}`);
    const kept = acts.slice(acts.lastIndexOf(null) + 1).filter((one) => typeof one === "string");
    assert.ok(kept.every((text) => server.texts.includes(text)), `lost: ${history}`);
    assert.equal(server.pressed, client.pressed, `the button: ${history}`);
    const last = acts.at(-1);
    if (last === null) assert.equal(server.reply.of, null, `still speaks: ${history}`);
    if (typeof last !== "string") continue;
    assert.equal(server.reply.of, last, `not answered: ${history}`);
    const cut = audio.orders.filter((one) => one.do === "interrupt").map(({ epoch }) => epoch);
    assert.ok(cut.every((epoch) => epoch < server.reply.epoch), `silenced: ${history}`);
  }
});
