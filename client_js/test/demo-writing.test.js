/** Text typed into the page before there is a conversation. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { settle } from "./fakes.js";
import { page } from "./page.js";

test("what is typed while the connection is made is said in its order", async () => {
  const { world, audio, session, code } = page();
  let open = () => undefined;
  audio.opening = new Promise((resolve) => (open = resolve));
  const writing = [session.write("A"), session.write("B")]; // the loudspeaker is not open yet
  open();
  await settle();
  writing.push(session.write("C")); // the loudspeaker is open, but there is no conversation
  assert.equal(code(), "");
  await world.greet();
  assert.deepEqual(await Promise.all(writing), [true, true, true]);
  assert.deepEqual(world.socket.said("text"), [["text", "A"], ["text", "B"], ["text", "C"]]);
});

test("what is typed while the browser asks for the microphone is said at once", async () => {
  const { world, audio, session } = page();
  audio.prompt = new Promise(() => undefined);
  void session.begin();
  await settle();
  await world.greet();
  assert.equal(await session.write("Hello"), true);
  assert.deepEqual(world.socket.said("text"), [["text", "Hello"]]);
});

test("what is typed before a connection that fails is handed back, all of it", async () => {
  const { world, session } = page();
  const writing = [session.write("A"), session.write("B")];
  await settle();
  world.socket.drop();
  assert.deepEqual(await Promise.all(writing), [false, false]);
  assert.equal(session.busy, false);
});
