"""Decode and prefill on the CPU beside llama.cpp: the same GGUF file, the same threads, one run.

SmolLM2-135M at Q4_1, tokens a second: 48 tokens each for 1 and for 8 requests, and a prompt of 512. Ours goes through
the whole engine, scheduling, sampling and detokenising included; llama.cpp (llama-cpp-python) is called at its lowest
level, llama_decode on a prepared batch, without sampling. The two take turns, five times each.

Time: a minute and a half on two cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from command_line import command_line
from common import THREADS, engine, finish, interleaved, machine, request, seconds, spread, table

from voxlane.engine.assemble import Assembly
from voxlane.engine.tokenizer import Tokenizer
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights

MODEL = "smollm2-135m-instruct"
PROMPT_TOKENS = 512
DECODE_TOKENS = 48
START_TOKENS = 32
REPEATS = 5
BARS = {"decode, batch 1": 0.9, "decode, batch 8": 1.2, "prefill 512": 2.5}


class Peer:
    """llama.cpp on the same file."""

    def __init__(self) -> None:
        import llama_cpp

        self._llama: Any = llama_cpp
        self._log: Any = llama_cpp.llama_log_callback(_say_nothing)  # kept: the library does not
        self._llama.llama_log_set(self._log, None)
        self._llama.llama_backend_init()
        path = str(store.resolve(MODEL)).encode()
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

    def __init__(self) -> None:
        self._engine: Assembly = engine(policy="fcfs", prefix_cache=False, model=MODEL)
        self._text = _text_of(PROMPT_TOKENS)

    def prefill(self) -> float:
        """Return tokens per second for one prompt, up to and including its first output token."""
        core = self._engine.core
        core.handle([request("p", self._text, 1)])
        return PROMPT_TOKENS / seconds(lambda: finish(core))

    def decode(self, batch: int) -> float:
        """Return tokens per second over all requests of a batch."""
        core = self._engine.core
        text = _text_of(START_TOKENS)
        core.handle([request(f"d{row}", text, DECODE_TOKENS + 1) for row in range(batch)])
        core.step()  # every prompt, and the first token of each
        return batch * DECODE_TOKENS / seconds(lambda: finish(core))


def _text_of(tokens: int) -> str:
    """Return a text of exactly that many tokens."""
    words = " word" * tokens
    if len(Tokenizer.from_weights(open_weights(store.resolve(MODEL))).encode(words)) != tokens:
        raise RuntimeError("the benchmark's text does not tokenise as expected")
    return words


def _say_nothing(level: int, text: bytes, data: object) -> None:
    """Drop what llama.cpp says: it is chatty."""


def main() -> None:
    """Measure and print the table."""
    command_line(__doc__).parse_args()
    ours, peer = Ours(), Peer()
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
        rows.append([name, spread(left), spread(right), f"{ratio:.2f}", f"≥ {BARS[name]}"])
    title = f"SmolLM2-135M Q4_1, tokens/s, median of {REPEATS} (range), {machine()}"
    table(title, ["", "voxlane", "llama.cpp", "ratio", "bar"], rows)


if __name__ == "__main__":
    main()
