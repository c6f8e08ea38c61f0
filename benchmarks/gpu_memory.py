"""An engine whose device memory runs out: at the start its cache shrinks; in a step the step's requests end.

    python benchmarks/gpu_memory.py --model smollm2-135m-instruct

A whole engine starts with far less memory than the device seems to have, and answers. Then the script takes all memory
that is still free, and the engine answers again. Prompts and decodes use memory reserved at the start and go on. A text
to be scored is launched kernel by kernel and fails until the memory is back. The answers before and after must be the
same. --dry-run goes the same way on the CPU, where no memory runs out.

Time: the engine's start, and some seconds.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import torch
from support.command_line import command_line

from voxlane.engine.api import EngineConfig, Finished, SamplingParams, Submit, Text
from voxlane.engine.build.assemble import assemble
from voxlane.engine.loop.core import Core
from voxlane.engine.weights import store

LIMIT_BYTES = 3 << 30
LONG = "The lighthouse keeper wrote a letter to the harbour master and waited for the next boat. " * 180
PROMPTS = {"short": "Once upon a time", "long": LONG, "scored": LONG}


def answer(core: Core, prompts: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Run prompts together; return each answer and how it ended."""
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    messages = core.handle(
        [
            Submit(name, "score" if name == "scored" else "complete", text=text, sampling=sampling)
            for name, text in prompts.items()
        ]
    )
    while core.busy:
        messages += core.step()
    messages += core.idle()
    found = dict.fromkeys(prompts, ("", "refused"))
    for message in messages:
        if isinstance(message, Text):
            found[message.request_id] = (found[message.request_id][0] + message.text, "")
        elif isinstance(message, Finished):
            found[message.request_id] = (found[message.request_id][0], message.reason)
    return found


def told(when: str, found: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Print how requests ended; return them."""
    print(f"{when:12} {', '.join(f'{key}: {end}' for key, (_, end) in found.items())}", flush=True)
    return found


def fill_device() -> list[torch.Tensor]:
    """Allocate all free memory of the device, in ever smaller pieces, and return it."""
    taken: list[torch.Tensor] = []
    size = LIMIT_BYTES
    while size >= 1 << 20:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def main() -> int:
    """Start an engine, take the memory, ask; return 1 if the engine did not survive."""
    parser = command_line(__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name from `voxlane models list`, or a file")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if not options.dry_run:
        torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / torch.cuda.mem_get_info()[1])
    device: Literal["cpu", "cuda"] = "cpu" if options.dry_run else "cuda"
    path = str(store.resolve(options.model))
    config = EngineConfig(
        path, "", "", weights="float32", device=device, max_batch=8, max_step_tokens=2048, prefix_cache=False
    )
    begin = time.monotonic()
    engine = assemble(config)
    ready = engine.ready
    seconds = time.monotonic() - begin
    print(f"{ready.device}: {ready.kv_blocks} blocks of {ready.block_tokens} tokens after {seconds:.1f} s", flush=True)
    prompts = {name: text[:500] for name, text in PROMPTS.items()} if options.dry_run else PROMPTS
    before = told("before", answer(engine.core, prompts))
    taken = [] if options.dry_run else fill_device()
    told("device full", answer(engine.core, prompts))
    taken.clear()
    after = told("after", answer(engine.core, prompts))
    alive = before == after and all(end not in ("failed", "refused") for _, end in after.values())
    print(f"the same answers as before: {'yes' if alive else 'NO'}")
    return 0 if alive else 1


if __name__ == "__main__":
    sys.exit(main())
