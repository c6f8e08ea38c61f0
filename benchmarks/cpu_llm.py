"""Decode and prefill on the CPU beside llama.cpp: the same GGUF file, the same threads, one run.

SmolLM2-135M at Q4_1 and Qwen2.5-Coder-0.5B at Q4_K_M, or the models named: tokens a second, 48 tokens each for 1 and
for 8 requests, and a prompt of 512. Ours runs the whole engine, with scheduling, sampling and detokenising; llama.cpp
(llama-cpp-python) is called at its lowest level, llama_decode on a prepared batch, without sampling. The two take
turns, five times each.

    python benchmarks/cpu_llm.py --model qwen2.5-coder-1.5b-instruct --model ./model.gguf

Time: six minutes on two cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from support.command_line import command_line
from support.common import THREADS, engine, finish, interleaved, machine, request, seconds, spread, table

from voxlane.engine.build.assemble import Assembly
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights

PROMPT_TOKENS = 512
DECODE_TOKENS = 48
START_TOKENS = 32
REPEATS = 5
BARS = {
    "smollm2-135m-instruct": {"decode, batch 1": 0.9, "decode, batch 8": 1.2, "prefill 512": 2.5},
    "qwen2.5-coder-0.5b-instruct": {"decode, batch 1": 1.2, "decode, batch 8": 1.2, "prefill 512": 2.5},
}
"""The models, and the ratios they should reach."""


class Peer:
    """llama.cpp on the same file."""

    def __init__(self, model: str) -> None:
        import llama_cpp

        self._llama: Any = llama_cpp
        self._log: Any = llama_cpp.llama_log_callback(_say_nothing)  # kept alive here: the library keeps no reference
        self._llama.llama_log_set(self._log, None)
        self._llama.llama_backend_init()
        path = str(store.resolve(model)).encode()
        self._model = self._llama.llama_model_load_from_file(path, self._llama.llama_model_default_params())

    def prefill(self) -> float:
        """Return tokens per second for one prompt."""
        context = self._context(1)
        tokens = [(1000 + n, n, 0, n == PROMPT_TOKENS - 1) for n in range(PROMPT_TOKENS)]
        rate = PROMPT_TOKENS / seconds(lambda: self._decode(context, tokens))
        self._llama.llama_free(context)
        return rate

    def decode(self, batch: int) -> float:
        """Return tokens per second over all sequences of a batch."""
        context = self._context(batch)
        for row in range(batch):
            self._decode(context, [(1000 + n + row, n, row, n == START_TOKENS - 1) for n in range(START_TOKENS)])

        def run() -> None:
            for n in range(DECODE_TOKENS):
                self._decode(context, [(2000 + n, START_TOKENS + n, row, True) for row in range(batch)])

        rate = batch * DECODE_TOKENS / seconds(run)
        self._llama.llama_free(context)
        return rate

    def close(self) -> None:
        """Free the model's memory."""
        self._llama.llama_model_free(self._model)

    def _context(self, sequences: int) -> object:
        params = self._llama.llama_context_default_params()
        params.n_ctx = 4096
        params.n_batch = params.n_ubatch = PROMPT_TOKENS
        params.n_threads = params.n_threads_batch = THREADS
        params.n_seq_max = sequences
        context: object = self._llama.llama_init_from_model(self._model, params)
        return context

    def _decode(self, context: object, tokens: list[tuple[int, int, int, bool]]) -> None:
        batch = self._llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        if self._llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        self._llama.llama_synchronize(context)
        self._llama.llama_batch_free(batch)


class Ours:
    """The engine, without prefix cache, so that every prompt is computed."""

    def __init__(self, model: str) -> None:
        self._engine: Assembly = engine(policy="fcfs", prefix_cache=False, model=model)
        self._prompt, self._start = (_text_of(tokens, model) for tokens in (PROMPT_TOKENS, START_TOKENS))

    def prefill(self) -> float:
        """Return tokens per second for one prompt, up to and including its first output token."""
        core = self._engine.core
        core.handle([request("p", self._prompt, 1)])
        return PROMPT_TOKENS / seconds(lambda: finish(core))

    def decode(self, batch: int) -> float:
        """Return tokens per second over all requests of a batch."""
        core = self._engine.core
        core.handle([request(f"d{row}", self._start, DECODE_TOKENS + 1) for row in range(batch)])
        core.step()  # every prompt, and the first token of each
        return batch * DECODE_TOKENS / seconds(lambda: finish(core))


def _text_of(tokens: int, model: str) -> str:
    """Return a text of exactly this many tokens."""
    words = " word" * tokens
    if len(Tokenizer.from_weights(open_weights(store.resolve(model))).encode(words)) != tokens:
        raise RuntimeError("the benchmark's text does not tokenise as expected")
    return words


def _say_nothing(level: int, text: bytes, data: object) -> None:
    """Drop llama.cpp's log."""


def measure(model: str) -> None:
    """Measure one model and print its table."""
    ours, peer = Ours(model), Peer(model)
    cases: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "decode, batch 1": (lambda: ours.decode(1), lambda: peer.decode(1)),
        "decode, batch 8": (lambda: ours.decode(8), lambda: peer.decode(8)),
        "prefill 512": (ours.prefill, peer.prefill),
    }
    rows = []
    for name, (mine, theirs) in cases.items():
        interleaved(1, mine, theirs)
        left, right = interleaved(REPEATS, mine, theirs)
        ratio = statistics.median(left) / statistics.median(right)
        bar = BARS.get(model, {}).get(name)
        rows.append([name, spread(left, 1), spread(right, 1), f"{ratio:.2f}", f"≥ {bar}" if bar else ""])
    title = f"{store.resolve(model).name}, tokens/s, median of {REPEATS} (range), {machine()}"
    table(title, ["", "voxlane", "llama.cpp", "ratio", "bar"], rows)
    peer.close()


def main() -> None:
    """Measure every model and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--model", action="append", help="a name of the catalog, or the path of a GGUF file")
    for model in parser.parse_args().model or BARS:
        measure(model)


if __name__ == "__main__":
    main()
