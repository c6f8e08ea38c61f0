// What the scripts of clients in Node share; tests/support/clients/client_script.py says how a script is called.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Microphone as PortableMicrophone, told } from './portable.mjs';

export * from './portable.mjs';

/** A microphone whose frames are Buffers. */
export class Microphone extends PortableMicrophone {
  run(send) {
    return super.run((frame) => send(Buffer.from(frame.buffer)));
  }
}

/** Run the scenarios that the command line names, and print what the user has seen of each. */
export async function play(name, scenarios) {
  const { version } = JSON.parse(readFileSync(join(import.meta.dirname, 'node_modules', name, 'package.json')));
  const [key, folder, ...wanted] = process.argv.slice(2);
  const clip = (title) => readFileSync(join(folder, `${title}.pcm`));
  for (const each of wanted) {
    const [scenario, url] = [each.slice(0, each.indexOf('=')), each.slice(each.indexOf('=') + 1)];
    const place = { url, key, clip, api: `${url}/v1`, websocket: `${url.replace('http', 'ws')}/v1` };
    console.log(JSON.stringify({ scenario, version, ...(await told(scenarios[scenario], place)) }));
  }
  process.exit(0); // some clients leave a socket open
}
