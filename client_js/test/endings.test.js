/** How conversations end, and what a page may do at that moment. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { begin, silence } from "./client.js";
import { settle } from "./fakes.js";

test("only who has said good-bye is told that all is as it should be", async () => {
  for (const closeCode of [1002, 1007, 1008, 1009, 4999]) {
    const { world, of } = await begin();
    world.socket.drop(closeCode);
    const [{ code, message }] = of("over");
    assert.equal(code, "broken_off");
    assert.match(message, new RegExp(`${closeCode}`));
  }
  const { world, client } = await begin({}, { connected: false });
  const connecting = client.connect();
  world.socket.drop(1001); // of a proxy, before there was a conversation
  await assert.rejects(connecting, { code: "broken_off" });
});

test("a page may close while the client begins to connect: nothing is left behind", async () => {
  const { world, client, of } = await begin({}, { connected: false });
  client.on("status", ({ status }) => status === "connecting" && void client.close());
  await assert.rejects(client.connect(), { code: "closed" });
  assert.equal(client.status, "closed");
  assert.ok(world.sockets.every(({ closed }) => closed));
  assert.equal(world.clock.waiting, 0);
  assert.equal(of("over").length, 1);
});

test("a page may connect again as soon as it is told of the end, whichever way", async () => {
  for (const name of ["status", "over"]) {
    const { world, client, of } = await begin();
    let again = null;
    client.on(name, () => client.status === "closed" && (again ??= client.connect()));
    world.socket.drop(4440);
    assert.equal(client.status, "connecting");
    await world.greet();
    assert.equal((await again).session, "voice-1");
    assert.equal(of("over").length, 1);
    assert.equal(of("status").at(-1).status, "open");
  }
});

test("a microphone that is closed is silent", async () => {
  const { client, audio, of } = await begin();
  await client.talk();
  audio.handlers.frame({ ...silence(), level: 0.4 });
  assert.equal(of("level").at(-1).input, 0.4);
  client.hush();
  const figures = { bufferMs: 0, targetMs: 0, underruns: 0, starvedMs: 0, level: 0.2, playing: true, held: false };
  audio.handlers.figures(figures);
  assert.deepEqual(of("level").at(-1), { input: 0, output: 0.2 });
});

test("a button that is let go while the browser has put the sound to sleep ends its turn", async () => {
  const { world, client, audio } = await begin();
  await client.talk();
  client.press();
  audio.silenced = true; // a telephone call: no frame will come
  client.release();
  await settle();
  assert.equal(world.socket.said("end").length, 1);
});
