import assert from "node:assert/strict";
import { test } from "node:test";

import { decode, encode, MsgpackError } from "../msgpack.js";
import { chance, readData, unhex, whole } from "./support.js";

const vectors = readData("msgpack.json");
const hex = (bytes) => Buffer.from(bytes).toString("hex");

function fromJson(value) {
  if (Array.isArray(value)) return value.map(fromJson);
  if (value === null || typeof value !== "object") return value;
  if ("$bin" in value) return unhex(value.$bin);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fromJson(item)]));
}

test("the bytes are those of Python's msgpack, both ways", () => {
  for (const { value, hex: wanted } of vectors.both_ways) {
    assert.equal(hex(encode(fromJson(value))), wanted);
    assert.deepEqual(decode(unhex(wanted)), fromJson(value));
  }
});

test("long text, bytes and lists begin as Python's do, and come back", () => {
  const made = [..."xx"].map((x, place) => x.repeat(65535 + place));
  const values = [...made, new Uint8Array(65535), new Uint8Array(65536), new Array(65536).fill(null)];
  values.forEach((value, place) => {
    const bytes = encode(value);
    assert.equal(hex(bytes.subarray(0, 8)), vectors.long[place].hex);
    assert.equal(decode(bytes).length, vectors.long[place].length);
  });
});

test("a float of four bytes is read", () => {
  for (const { value, hex: bytes } of vectors.decoded_only) assert.equal(decode(unhex(bytes)), value);
});

test("every beginning of a message is refused, and every message with something behind it", () => {
  for (const { hex: text } of vectors.both_ways) {
    const bytes = unhex(text);
    for (let length = 0; length < Math.min(bytes.length, 40); length++) {
      assert.throws(() => decode(bytes.subarray(0, length)), MsgpackError);
    }
    assert.throws(() => decode(unhex(`${text}c0`)), MsgpackError);
  }
});

test("what the dialect does not use is refused", () => {
  const refused = {
    "an extension": "d40100",
    "the unused type": "c1",
    "a key that is a number": "8101c0",
    "a whole number of 2^53": "cf0020000000000000",
    "not a number": "cb7ff8000000000000",
    "infinity": "ca7f800000",
    "text that is not UTF-8": "a1ff",
    "a list that cannot be there": "ddffffffff",
    "a map that cannot be there": "dfffffffff",
    "bytes that cannot be there": "c6ffffffff00",
    "a hundred levels": "91".repeat(100) + "c0",
  };
  for (const [what, bytes] of Object.entries(refused)) assert.throws(() => decode(unhex(bytes)), MsgpackError, what);
  for (const value of [NaN, Infinity, 2 ** 53, undefined, 1n, Symbol("x"), [undefined]]) {
    assert.throws(() => encode(value), MsgpackError);
  }
  const round = [];
  round.push(round);
  assert.throws(() => encode(round), MsgpackError);
});

test("a key that is undefined is left out; __proto__ changes nothing", () => {
  assert.deepEqual(decode(encode({ a: 1, b: undefined })), { a: 1 });
  const map = decode(unhex("82a95f5f70726f746f5f5f81a178 01a16102".replace(" ", "")));
  assert.deepEqual(map, { a: 2 });
  assert.equal(map.x, undefined);
});

test("random bytes never do anything but decode or raise MsgpackError", () => {
  const random = chance(7);
  for (let round = 0; round < 5000; round++) {
    const bytes = Uint8Array.from({ length: whole(random, 0, 24) }, () => whole(random, 0, 255));
    try {
      decode(bytes);
    } catch (error) {
      assert.ok(error instanceof MsgpackError, String(error));
    }
  }
});

test("a message in the middle of a larger buffer is read from its own beginning", () => {
  const bytes = encode(["audio", new Uint8Array([1, 2, 3, 4])]);
  const larger = new Uint8Array(bytes.length + 7);
  larger.set(bytes, 3);
  assert.deepEqual(decode(larger.subarray(3, 3 + bytes.length)), ["audio", new Uint8Array([1, 2, 3, 4])]);
});
