/**
 * The demo page's tools for partner.py: reads calls ([[name, arguments], …]) as JSON from stdin, and prints the tools as
 * the page declares them and the output of each call as the page sends it.
 *
 * The clock stands at 16:25 today, and the dice fall the same way in every call.
 */

import { readFileSync } from "node:fs";

import { demoTools } from "../client_js/demo/tools.js";
import { toolConfig } from "../client_js/tools.js";

const FALLS = [0.75, 0.2, 0.5, 0.9, 0.1];

function tools() {
  const now = new Date();
  now.setHours(16, 25);
  let fallen = 0;
  return demoTools({
    now: () => now,
    random: () => FALLS[fallen++ % FALLS.length],
    setTimer: () => {},
    rang: () => {},
  });
}

const calls = JSON.parse(readFileSync(0, "utf-8"));
const outputs = calls.map(([name, args]) => JSON.stringify(tools()[name].run(args)));
process.stdout.write(JSON.stringify({ tools: toolConfig(tools()), outputs }));
