"""What every key of the configuration is for, in a sentence each: `voxlane check-config --keys`.

It knows words. Types, ranges and defaults are config.py's own, and a test holds that no key is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from voxlane.server import limits

_CACHED = "KV cache"
_ENDING = limits.STOP_SECONDS - limits.DRAIN_SECONDS

MEANINGS: Mapping[str, str] = {
    "server.host": "The address to listen on. Where others can reach it, VOXLANE_API_KEY or server.open is needed.",
    "server.port": "The port to listen on; 0 takes any free one, which the banner tells.",
    "server.open": "Serve everybody who can reach server.host, without a key.",
    "server.model_alias": "A second name for the chat model, for clients that insist on one.",
    "server.highest_priority": "The most urgent priority that a request may ask for.",
    "server.drain_s": f"Seconds for which answers may go on after SIGTERM; the end takes up to {_ENDING:g} s more.",
    "server.log_level": "The least that is logged. No level logs what is said.",
    "engine.model": 'The model that chats: a name from `voxlane models list`, a file or a directory; "auto" chooses by '
    'the speed and memory of this machine, "" is none.',
    "engine.asr_model": 'The model that listens, named in the same way; "" for none.',
    "engine.tts_model": 'The model that speaks, named in the same way; "" for none.',
    "engine.adapter": 'A LoRA adapter (PEFT) merged into the chat model: a directory or an hf: name; "auto" is ours, '
    'if there is one for the model, "" is none.',
    "engine.weights": "How weights are kept; packed means groups of 32 in 4 or 8 bits.",
    "engine.pages": f"The element type of the {_CACHED}; int8 takes half of bfloat16's memory.",
    "engine.threads": "Compute threads; 0 takes every core this process may use.",
    "engine.context_tokens": "The longest prompt and output together, in tokens; 0 takes the model's own limit.",
    "engine.kv_memory_mib": f"MiB of memory for the chat model's {_CACHED} on a CPU.",
    "engine.asr_memory_mib": f"MiB of memory for the listening model's {_CACHED}; 0 takes what suits the device.",
    "engine.tts_memory_mib": f"MiB of memory for the speaking model's {_CACHED}, if it has one; 0 suits the device.",
    "engine.swap_memory_mib": "MiB of host memory for requests that had to make room; 0 computes them again instead.",
    "engine.block_tokens": f"Tokens in one block of the {_CACHED}; 0 takes what suits the device.",
    "engine.max_batch": "The most requests in one step; 0 takes what suits the device.",
    "engine.max_step_tokens": "The most tokens in one step, pieces of prompts included; 0 takes what suits the device.",
    "engine.max_waiting": "Requests in the queue before new ones are refused with 429.",
    "engine.policy": "Who goes first: by arrival (fcfs), by priority, or by what is due when (deadline).",
    "engine.step_budget_ms": "How long policy deadline makes a step, and so how long a critical request waits, in ms.",
    "engine.prefix_cache": "Keep what was computed of a prompt for others that begin alike.",
    "engine.lookup_tokens": "Tokens guessed from the prompt in each step: quicker where it is quoted; 0 guesses none.",
    "engine.trace": 'A file for a Chrome/Perfetto trace of the engine\'s steps; "" writes none.',
    "engine.device": "Where the models run; auto takes a GPU if there is one.",
    "engine.gpu_memory_share": f"The share of GPU memory the weights leave free that the chat model's {_CACHED} takes.",
    "limits.body_bytes": "The largest body of a JSON request, in bytes.",
    "limits.body_s": "Seconds for such a body to arrive.",
    "limits.write_s": "Seconds that a piece of an answer may wait for a client that does not read.",
    "limits.open_requests": "HTTP requests being answered at one time; more are refused with 429.",
    "limits.connections": "Open connections of all kinds; HTTP requests on more are refused with 503.",
    "limits.audio_body_bytes": "The largest upload of a recording, in bytes.",
    "limits.audio_body_s": "Seconds for an upload to arrive.",
    "limits.audio_s": "The longest recording, in seconds.",
    "limits.audio_held_bytes": "Bytes of recordings that all requests together may hold.",
    "limits.audio_decoders": "Recordings that are decoded at one time; others wait.",
    "limits.speech_characters": "The longest text of one /v1/audio/speech request, in characters.",
    "voice.instructions": "What the chat model is told to be, unless a client says otherwise; {date} becomes the day.",
    "voice.greeting": 'What is said when a conversation begins; "" waits for the person.',
    "voice.origins": "Pages of other addresses that may connect, as https://example.org.",
    "voice.sessions": "Conversations at one time; more are refused with 503.",
    "voice.sessions_per_address": "Conversations from one address: behind a reverse proxy, all of them.",
    "voice.session_s": "The longest conversation, in seconds; its client is warned a minute before.",
    "voice.idle_s": "Seconds without any message after which a client is taken to be gone.",
    "voice.resume_s": "Seconds for which a conversation waits for a lost connection to come back; 0 ends it at once.",
    "voice.history_tokens": "Tokens of a conversation that the chat model is shown; 0 takes what suits the device.",
    "chat.url": 'A server that does the thinking in conversations, as http://127.0.0.1:11434/v1; "": our own engine.',
    "chat.model": "The name of the model there; needed with chat.url. Its key is VOXLANE_CHAT_KEY.",
    "weights.mirrors": "Where a publisher's file cannot be had, take others' copies of it, told by the pinned hash.",
}
"""By section and name; in the configuration's order."""
