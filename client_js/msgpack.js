/**
 * The part of msgpack that the native dialect uses: nil, booleans, numbers, text, bytes, lists and maps of text.
 *
 * Everything is checked: lengths against the bytes that are there, numbers against the range that JavaScript counts
 * exactly, text against UTF-8. Extension types are refused.
 */

/** @typedef {{ [key: string]: Value }} Dictionary */
/**
 * Lists are `any[]` because compilers before TypeScript 7 take `Value[]` for a circular type.
 * @typedef {null | boolean | number | string | Uint8Array | any[] | Dictionary} Value
 */

/** Deepest nesting of lists and maps, both ways: the dialect has five levels. */
const DEEPEST = 32;

const utf8 = new TextEncoder();
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes that are not msgpack, or a value that msgpack cannot express. */
export class MsgpackError extends Error {
  name = "MsgpackError";
}

/**
 * Return a value's bytes. Keys whose value is undefined are left out, as in JSON.
 * @param {unknown} value
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function encode(value) {
  const writer = new Writer();
  writer.value(value, 0);
  return writer.take();
}

/**
 * Return the one value that the bytes hold.
 * @param {Uint8Array} bytes
 * @returns {Value}
 */
export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  reader.end();
  return value;
}

class Writer {
  #bytes = new Uint8Array(256);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  take() {
    return this.#bytes.slice(0, this.#length);
  }

  /** @param {unknown} value @param {number} depth */
  value(value, depth) {
    if (depth > DEEPEST) throw new MsgpackError("too deeply nested");
    if (value === null) this.#byte(0xc0);
    else if (value === false) this.#byte(0xc2);
    else if (value === true) this.#byte(0xc3);
    else if (typeof value === "number") this.#number(value);
    else if (typeof value === "string") this.#text(value);
    else if (value instanceof Uint8Array) this.#bin(value);
    else if (Array.isArray(value)) this.#list(value, depth);
    else if (typeof value === "object") this.#map(/** @type {object} */ (value), depth);
    else throw new MsgpackError(`no form for a value of type ${typeof value}`);
  }

  /** @param {number} value */
  #number(value) {
    if (!Number.isFinite(value)) throw new MsgpackError("numbers are finite");
    if (!Number.isInteger(value)) this.#put(9, (view, at) => (view.setUint8(at, 0xcb), view.setFloat64(at + 1, value)));
    else if (!Number.isSafeInteger(value)) throw new MsgpackError("a whole number beyond 2^53 - 1");
    else if (value < 0) this.#negative(value);
    else if (value < 0x80) this.#byte(value);
    else if (value < 0x100) this.#head8(0xcc, value);
    else if (value < 0x10000) this.#head16(0xcd, value);
    else if (value < 0x100000000) this.#head32(0xce, value);
    else this.#put(9, (view, at) => (view.setUint8(at, 0xcf), view.setBigUint64(at + 1, BigInt(value))));
  }

  /** @param {number} value */
  #negative(value) {
    if (value >= -0x20) this.#byte(value & 0xff);
    else if (value >= -0x80) this.#head8(0xd0, value & 0xff);
    else if (value >= -0x8000) this.#head16(0xd1, value & 0xffff);
    else if (value >= -0x80000000) this.#head32(0xd2, value >>> 0);
    else this.#put(9, (view, at) => (view.setUint8(at, 0xd3), view.setBigInt64(at + 1, BigInt(value))));
  }

  /** @param {string} value */
  #text(value) {
    const bytes = utf8.encode(value);
    if (bytes.length < 32) this.#byte(0xa0 | bytes.length);
    else if (bytes.length < 0x100) this.#head8(0xd9, bytes.length);
    else if (bytes.length < 0x10000) this.#head16(0xda, bytes.length);
    else this.#head32(0xdb, bytes.length);
    this.#raw(bytes);
  }

  /** @param {Uint8Array} value */
  #bin(value) {
    if (value.length < 0x100) this.#head8(0xc4, value.length);
    else if (value.length < 0x10000) this.#head16(0xc5, value.length);
    else this.#head32(0xc6, value.length);
    this.#raw(value);
  }

  /** @param {unknown[]} list @param {number} depth */
  #list(list, depth) {
    if (list.length < 16) this.#byte(0x90 | list.length);
    else if (list.length < 0x10000) this.#head16(0xdc, list.length);
    else this.#head32(0xdd, list.length);
    for (const item of list) this.value(item, depth + 1);
  }

  /** @param {object} map @param {number} depth */
  #map(map, depth) {
    const entries = Object.entries(map).filter(([, value]) => value !== undefined);
    if (entries.length < 16) this.#byte(0x80 | entries.length);
    else if (entries.length < 0x10000) this.#head16(0xde, entries.length);
    else this.#head32(0xdf, entries.length);
    for (const [key, value] of entries) {
      this.#text(key);
      this.value(value, depth + 1);
    }
  }

  /** @param {number} byte */
  #byte(byte) {
    this.#put(1, (view, at) => view.setUint8(at, byte));
  }

  /** @param {number} type @param {number} value */
  #head8(type, value) {
    this.#put(2, (view, at) => view.setUint16(at, (type << 8) | value));
  }

  /** @param {number} type @param {number} value */
  #head16(type, value) {
    this.#put(3, (view, at) => (view.setUint8(at, type), view.setUint16(at + 1, value)));
  }

  /** @param {number} type @param {number} value */
  #head32(type, value) {
    this.#put(5, (view, at) => (view.setUint8(at, type), view.setUint32(at + 1, value)));
  }

  /** @param {Uint8Array} bytes */
  #raw(bytes) {
    this.#put(bytes.length, (_, at) => this.#bytes.set(bytes, at));
  }

  /** @param {number} size @param {(view: DataView, at: number) => unknown} write */
  #put(size, write) {
    if (this.#length + size > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(2 * this.#bytes.length, this.#length + size));
      larger.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = larger;
      this.#view = new DataView(larger.buffer);
    }
    write(this.#view, this.#length);
    this.#length += size;
  }
}

class Reader {
  #bytes;
  #view;
  #at = 0;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  end() {
    if (this.#at !== this.#bytes.length) throw new MsgpackError("bytes behind the value");
  }

  /** @param {number} depth @returns {Value} */
  value(depth) {
    if (depth > DEEPEST) throw new MsgpackError("too deeply nested");
    const type = this.#unsigned(1);
    if (type < 0x80) return type;
    if (type < 0x90) return this.#map(type & 0x0f, depth);
    if (type < 0xa0) return this.#list(type & 0x0f, depth);
    if (type < 0xc0) return this.#text(type & 0x1f);
    if (type >= 0xe0) return type - 0x100;
    switch (type) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return this.#bin(this.#unsigned(1));
      case 0xc5: return this.#bin(this.#unsigned(2));
      case 0xc6: return this.#bin(this.#unsigned(4));
      case 0xca: return this.#finite(this.#view.getFloat32(this.#take(4)));
      case 0xcb: return this.#finite(this.#view.getFloat64(this.#take(8)));
      case 0xcc: return this.#unsigned(1);
      case 0xcd: return this.#unsigned(2);
      case 0xce: return this.#unsigned(4);
      case 0xcf: return this.#exact(this.#view.getBigUint64(this.#take(8)));
      case 0xd0: return this.#view.getInt8(this.#take(1));
      case 0xd1: return this.#view.getInt16(this.#take(2));
      case 0xd2: return this.#view.getInt32(this.#take(4));
      case 0xd3: return this.#exact(this.#view.getBigInt64(this.#take(8)));
      case 0xd9: return this.#text(this.#unsigned(1));
      case 0xda: return this.#text(this.#unsigned(2));
      case 0xdb: return this.#text(this.#unsigned(4));
      case 0xdc: return this.#list(this.#unsigned(2), depth);
      case 0xdd: return this.#list(this.#unsigned(4), depth);
      case 0xde: return this.#map(this.#unsigned(2), depth);
      case 0xdf: return this.#map(this.#unsigned(4), depth);
      default: throw new MsgpackError(`type 0x${type.toString(16)} is not used`);
    }
  }

  /** @param {1 | 2 | 4} size */
  #unsigned(size) {
    const at = this.#take(size);
    if (size === 1) return this.#view.getUint8(at);
    return size === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  /** @param {number} value */
  #finite(value) {
    if (!Number.isFinite(value)) throw new MsgpackError("numbers are finite");
    return value;
  }

  /** @param {bigint} value */
  #exact(value) {
    const number = Number(value);
    if (!Number.isSafeInteger(number)) throw new MsgpackError("a whole number beyond 2^53 - 1");
    return number;
  }

  /** @param {number} length */
  #text(length) {
    const at = this.#take(length);
    try {
      return strictUtf8.decode(this.#bytes.subarray(at, at + length));
    } catch (cause) {
      throw new MsgpackError("text that is not UTF-8", { cause });
    }
  }

  /** @param {number} length */
  #bin(length) {
    const at = this.#take(length);
    return this.#bytes.slice(at, at + length); // a copy: aligned for samples, and transferable to a worklet
  }

  /** @param {number} count @param {number} depth */
  #list(count, depth) {
    this.#check(count);
    /** @type {Value[]} */
    const list = [];
    for (let item = 0; item < count; item++) list.push(this.value(depth + 1));
    return list;
  }

  /** @param {number} count @param {number} depth */
  #map(count, depth) {
    this.#check(2 * count);
    /** @type {{ [key: string]: Value }} */
    const map = {};
    for (let item = 0; item < count; item++) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new MsgpackError("keys are text");
      const value = this.value(depth + 1);
      if (key !== "__proto__") map[key] = value; // assigning it would change the map's prototype
    }
    return map;
  }

  /** @param {number} size */
  #take(size) {
    this.#check(size);
    const at = this.#at;
    this.#at += size;
    return at;
  }

  /** @param {number} least bytes that must still be there */
  #check(least) {
    if (least > this.#bytes.length - this.#at) throw new MsgpackError("it ends too early");
  }
}
