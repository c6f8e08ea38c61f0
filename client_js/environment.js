/** What a connection needs from outside: sockets, time and random numbers. Tests pass their own. */

/**
 * @typedef {object} SocketLike the part of a WebSocket that is used
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {(data: Uint8Array<ArrayBuffer>) => void} send
 * @property {(code?: number) => void} close
 */

/**
 * @typedef {object} Environment
 * @property {(url: string, protocols: string[]) => SocketLike} open
 * @property {() => number} now monotonic milliseconds
 * @property {(then: () => void, ms: number) => any} setTimer
 * @property {(timer: any) => void} clearTimer
 * @property {() => number} random from 0 to 1
 */

/** Return the environment of a browser, or of Node from version 22 on. @returns {Environment} */
export function browserEnvironment() {
  return {
    open: (url, protocols) => new WebSocket(url, protocols),
    now: () => performance.now(),
    setTimer: (then, ms) => setTimeout(then, ms),
    clearTimer: (timer) => clearTimeout(timer),
    random: Math.random,
  };
}
