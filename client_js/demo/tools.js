/**
 * Tools to show what tools are: a clock, a timer and dice. They run in this page and need no key. Pure.
 *
 * The assistant calls them; the page answers over the conversation's own connection.
 */

/**
 * @typedef {object} ToolWorld
 * @property {() => Date} now
 * @property {() => number} random from 0 to 1, without 1
 * @property {(then: () => void, ms: number) => unknown} setTimer
 * @property {(label: string) => void} rang called when a timer is over
 */

const LONGEST_S = 24 * 3600;
const MOST_DICE = 20;
const MOST_SIDES = 1000;

/** Return the tools. @param {ToolWorld} world @returns {import("../tools.js").Tools} */
export function demoTools({ now, random, setTimer, rang }) {
  return {
    get_time: {
      description:
        "Get the current time and date. Call this whenever the person asks what time it is or how late it is.",
      parameters: { type: "object", properties: {} },
      run: () => clockOf(now()),
    },
    set_timer: {
      description: "Start a timer. Call this to ring, remind or wake the person after some seconds.",
      parameters: {
        type: "object",
        properties: { seconds: { type: "number", description: "how long to wait; a minute has 60" } },
        required: ["seconds"],
      },
      run: (args) => {
        const seconds = within(args?.seconds, 1, LONGEST_S, "seconds");
        setTimer(() => rang(lasting(seconds)), 1000 * seconds);
        return { set: true, rings_in: lasting(seconds) };
      },
    },
    roll_dice: {
      description: "Roll dice. Call this whenever the person wants dice to be rolled or thrown.",
      parameters: {
        type: "object",
        properties: {
          dice: { type: "integer", description: "how many dice; 1 if not said" },
          sides: { type: "integer", description: "sides of each; 6 if not said" },
        },
      },
      run: (args) => {
        const dice = Math.round(within(args?.dice ?? 1, 1, MOST_DICE, "dice"));
        const sides = Math.round(within(args?.sides ?? 6, 2, MOST_SIDES, "sides"));
        const rolled = Array.from({ length: dice }, () => 1 + Math.floor(random() * sides));
        return { rolled, sum: rolled.reduce((sum, one) => sum + one, 0) };
      },
    },
  };
}

/** @param {Date} time */
function clockOf(time) {
  return {
    time: time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }),
    date: time.toLocaleDateString("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" }),
  };
}

/**
 * Return a number that the assistant gave; raise with a sentence for the assistant if it is none.
 * @param {unknown} value @param {number} least @param {number} most @param {string} name
 */
function within(value, least, most, name) {
  const number = Number(value);
  if (!(number >= least && number <= most)) throw new RangeError(`${name} must be a number from ${least} to ${most}`);
  return number;
}

/** Return a duration in words. @param {number} seconds */
export function lasting(seconds) {
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const parts = [counted(hours, "hour"), counted(minutes, "minute"), counted(whole % 60, "second")].filter(Boolean);
  return parts.join(" and ") || "0 seconds";
}

/** @param {number} count @param {string} noun */
function counted(count, noun) {
  return count ? `${count} ${noun}${count === 1 ? "" : "s"}` : "";
}
