// @openai/agents-realtime in Node, over WebSocket.

import * as sdk from '@openai/agents-realtime';
import { overWebSocket, scenarios } from './agents_scenarios.mjs';
import { play } from './script.mjs';

await play('@openai/agents-realtime', scenarios(sdk, overWebSocket));
