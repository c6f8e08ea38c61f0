import assert from "node:assert/strict";
import { test } from "node:test";

import { Announcer } from "../demo/announcer.js";
import { explain, waiting } from "../demo/notices.js";
import { openStorage, StanceMemory } from "../demo/storage.js";
import { FakeStorage } from "./fakes.js";

function reader() {
  const said = [];
  return { said, announcer: new Announcer((words) => said.push(words)) };
}

const line = (id, role, status, heard, unheard = "") => ({ id, role, status, heard, unheard });

test("a line is read once, when it is complete; the assistant's only where its voice is not heard", () => {
  const { said, announcer } = reader();
  announcer.skip([line(1, "user", "done", "An old question.")]);
  const lines = [line(1, "user", "done", "An old question."), line(2, "user", "live", "What")];
  announcer.lines(lines, { audible: true });
  assert.deepEqual(said, []);
  lines[1] = line(2, "user", "done", "What now?");
  lines[2] = line(3, "assistant", "live", "", "Now");
  for (let times = 0; times < 2; times++) announcer.lines(lines, { audible: true });
  assert.deepEqual(said, ["You: What now?"]);
  lines[2] = line(3, "assistant", "done", "Now this.");
  announcer.lines(lines, { audible: true });
  assert.equal(said.length, 1);
  lines[3] = line(4, "assistant", "interrupted", "And", " that.");
  announcer.lines(lines, { audible: false });
  assert.match(said[1], /^Assistant: And that\. \(interrupted/);
});

test("the connection is said when it changes", () => {
  const { said, announcer } = reader();
  for (const link of ["off", "trying", "on", "on", "trying", "trying", "on", "off"]) announcer.link(link);
  assert.deepEqual(said, ["Connected", "Reconnecting", "Connected", "The conversation has ended"]);
});

test("a notice is said once, without its countdown, and not what the connection says", () => {
  const { said, announcer } = reader();
  for (const delayMs of [2000, 4000, 8000]) announcer.notice(waiting(explain("server_away"), delayMs));
  assert.deepEqual(said, [explain("server_away").text]);
  announcer.notice(null);
  announcer.notice(explain("reconnecting"));
  announcer.notice(explain("resumed"));
  assert.equal(said.length, 1);
  announcer.notice(explain("server_away"));
  assert.equal(said.length, 2);
});

test("the microphone is left as its person left it", () => {
  const storage = new FakeStorage();
  assert.deepEqual(new StanceMemory(storage).read(), { listening: false, muted: false });
  for (const stance of [{ listening: true, muted: false }, { listening: true, muted: true }]) {
    new StanceMemory(storage).write({ ...stance, pressed: true });
    assert.deepEqual(new StanceMemory(storage).read(), stance);
  }
});

test("a browser that keeps nothing is no reason to stop", () => {
  const blocked = () => {
    throw new DOMException("site data are blocked", "SecurityError");
  };
  const full = () => ({ ...new FakeStorage(), setItem: blocked });
  for (const find of [blocked, full, () => null]) {
    const storage = openStorage(find);
    assert.equal(storage.getItem("name"), null);
    storage.setItem("name", "value");
    assert.equal(storage.getItem("name"), "value");
    storage.removeItem("name");
    assert.equal(storage.getItem("name"), null);
  }
  const real = new FakeStorage();
  assert.equal(openStorage(() => real), real);
  assert.equal(real.values.size, 0);
  assert.throws(() => openStorage(() => { throw new RangeError("ours"); }), RangeError);
});
