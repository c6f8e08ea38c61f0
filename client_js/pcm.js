/** Convert between PCM16, as on the wire, and floats between -1 and 1, as in browsers. */

/**
 * @param {Uint8Array} bytes little-endian samples; an odd last byte is left out
 * @returns {Float32Array<ArrayBuffer>}
 */
export function toFloats(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const floats = new Float32Array(bytes.byteLength >> 1);
  for (let place = 0; place < floats.length; place++) floats[place] = view.getInt16(2 * place, true) / 32768;
  return floats;
}

/**
 * @param {Float32Array} floats
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function toPcm16(floats) {
  const bytes = new Uint8Array(2 * floats.length);
  const view = new DataView(bytes.buffer);
  for (let place = 0; place < floats.length; place++) {
    const value = Math.round(floats[place] * 32768);
    view.setInt16(2 * place, value > 32767 ? 32767 : value < -32768 ? -32768 : value, true); // NaN is stored as 0
  }
  return bytes;
}

/** Return the root mean square of samples, 0 to 1. @param {Float32Array} floats */
export function loudness(floats) {
  let sum = 0;
  for (const value of floats) sum += value * value;
  return floats.length ? Math.sqrt(sum / floats.length) : 0;
}
