import assert from "node:assert/strict";
import { test } from "node:test";

import { Preferences } from "../demo/preferences.js";
import { valuesGiven } from "../demo/settings.js";
import { demoTools, lasting } from "../demo/tools.js";
import { toolConfig } from "../tools.js";
import { FakeStorage } from "./fakes.js";

function tools() {
  const [timers, rung] = [[], []];
  const made = demoTools({
    now: () => new Date(2026, 10, 18, 14, 3),
    random: () => 0.5,
    setTimer: (then, ms) => timers.push({ then, ms }),
    rang: (label) => rung.push(label),
  });
  return { ...made, timers, rung };
}

test("the tools are declared with their schemas", () => {
  const { get_time, set_timer, roll_dice } = tools();
  const declared = toolConfig({ get_time, set_timer, roll_dice });
  for (const { description, parameters } of declared) {
    assert.ok(description);
    assert.equal(JSON.parse(parameters).type, "object");
  }
});

test("a clock, a timer that rings, and dice", () => {
  const { get_time, set_timer, roll_dice, timers, rung } = tools();
  assert.equal(get_time.run({}).time, "14:03");
  assert.match(get_time.run({}).date, /^Wednesday,? 18 November 2026$/);
  assert.deepEqual(set_timer.run({ seconds: 90 }), { set: true, rings_in: "1 minute and 30 seconds" });
  assert.equal(timers[0].ms, 90_000);
  assert.deepEqual(rung, []);
  timers[0].then();
  assert.deepEqual(rung, ["1 minute and 30 seconds"]);
  assert.deepEqual(roll_dice.run({}), { rolled: [4], sum: 4 });
  assert.deepEqual(roll_dice.run({ dice: 2, sides: 20 }), { rolled: [11, 11], sum: 22 });
  assert.equal(lasting(120), "2 minutes");
  assert.equal(lasting(119.7), "2 minutes");
  assert.equal(lasting(7200), "2 hours");
  assert.equal(lasting(5401), "1 hour and 30 minutes and 1 second");
});

test("what a model makes up is refused in words that it can use", () => {
  const { set_timer, roll_dice, timers } = tools();
  for (const args of [undefined, null, {}, { seconds: "soon" }, { seconds: 0 }, { seconds: 1e9 }]) {
    assert.throws(() => set_timer.run(args), /seconds must be a number from 1 to 86400/);
  }
  assert.throws(() => roll_dice.run({ dice: 1e6 }), /dice must be/);
  assert.throws(() => roll_dice.run({ sides: 1 }), /sides must be/);
  assert.equal(timers.length, 0);
});

test("settings outlive the page; what is not ours, or of another kind, is left out", () => {
  const storage = new FakeStorage();
  const preferences = new Preferences(storage);
  const usual = preferences.read();
  assert.deepEqual([usual.tools, usual.key, usual.config], [false, "", {}]);
  preferences.write({ tools: true });
  preferences.write({ config: { voice: "alba" } });
  assert.deepEqual(new Preferences(storage).read(), { ...usual, tools: true, config: { voice: "alba" } });
  for (const text of ["null", "[1]", "not JSON", '{"tools":"yes","config":[1],"key":7,"processing":null}']) {
    storage.setItem("voxlane.settings", text);
    assert.deepEqual(preferences.read(), usual, text);
  }
  preferences.write({ tools: true });
  preferences.forget();
  assert.deepEqual(preferences.read(), usual);
});

test("a full storage is no trouble", () => {
  const storage = new FakeStorage();
  storage.setItem = () => {
    throw new DOMException("full", "QuotaExceededError");
  };
  new Preferences(storage).write({ tools: true });
});

test("only what was kept is brought back into the form", () => {
  assert.deepEqual(valuesGiven({ voice: "alba", turns: { eagerness: "low" } }), { voice: "alba", eagerness: "low" });
  assert.deepEqual(valuesGiven({}), {});
});
