import assert from "node:assert/strict";
import { test } from "node:test";

import { Outbox } from "../outbox.js";

/** An outbox; `said` is what it has written, as text. */
function make() {
  const said = [];
  const outbox = new Outbox((frame) => said.push(new TextDecoder().decode(frame)));
  const send = (text, mark, how = {}) => outbox.send({ frame: new TextEncoder().encode(text), ...how }, mark);
  return { outbox, said, send };
}

const lost = () => true;

test("what cannot be said waits, and no more than a person types", () => {
  const { outbox, said, send } = make();
  const taken = Array.from({ length: 100 }, (_, index) => send(String(index), null));
  assert.equal(taken.filter(Boolean).length, 64);
  outbox.begin(true);
  outbox.release(1);
  assert.deepEqual(said, Array.from({ length: 64 }, (_, index) => String(index)));
  assert.equal(send("more", 1), true);
});

test("it arrived when a ping behind it was answered, not before", () => {
  const { outbox, said, send } = make();
  let arrived = 0;
  send("stop", 1, { lost, arrived: () => (arrived += 1) });
  outbox.answered(1); // of a ping that was before it
  assert.equal(arrived, 0);
  outbox.answered(2);
  assert.equal(arrived, 1);
  outbox.begin(true);
  outbox.answered(3);
  assert.deepEqual(said, ["stop"]);
});

test("only what is ordered waits for what is in doubt", () => {
  const { outbox, said, send } = make();
  send("A", 1, { ordered: true, lost });
  outbox.begin(true);
  send("B", 1, { ordered: true });
  send("start", 1);
  outbox.answered(2);
  assert.deepEqual(said, ["A", "start", "A", "B"]);
});

test("what hushes takes back what may be lost, and goes behind what waited for that", () => {
  const { outbox, said, send } = make();
  send("A", 1, { ordered: true, lost });
  send("result", 1, { lost });
  outbox.begin(true);
  send("B", 1, { ordered: true, lost: () => false });
  send("stop", 1, { hushes: true });
  outbox.answered(2);
  assert.deepEqual(said, ["A", "result", "B", "stop", "result"]);
});

test("another conversation gets what makes sense in it", () => {
  const { outbox, said, send } = make();
  send("A", 1, { lost, survives: true });
  send("result", 1, { lost });
  send("B", null, { survives: true });
  send("stop", null);
  outbox.begin(false);
  outbox.answered(2);
  assert.deepEqual(said, ["A", "result", "A", "B"]);
  outbox.clear();
  outbox.begin(true);
  outbox.answered(3);
  assert.equal(said.length, 4);
});
