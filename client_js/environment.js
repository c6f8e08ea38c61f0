/** What a connection needs of the world: sockets, time and chance. Tests give their own. */

/**
 * @typedef {object} SocketLike what is used of a WebSocket
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
 * @property {() => number} now milliseconds that only rise
 * @property {(then: () => void, ms: number) => any} setTimer
 * @property {(timer: any) => void} clearTimer
 * @property {() => number} random from 0 to 1
 */

/** Return what a browser, or Node from version 22 on, has. @returns {Environment} */
export function browserEnvironment() {
  return {
    open: (url, protocols) => new WebSocket(url, protocols),
    now: () => performance.now(),
    setTimer: (then, ms) => setTimeout(then, ms),
    clearTimer: (timer) => clearTimeout(timer),
    random: Math.random,
  };
}
