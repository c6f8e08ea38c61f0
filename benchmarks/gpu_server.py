"""The whole service on a GPU: `voxlane serve` with real models, asked over HTTP and spoken to in real time.

    python benchmarks/gpu_server.py
    python benchmarks/gpu_server.py --device cpu --sessions 1 --rounds 1 --parts chat,speech

Parts: `chat` (time to the first token alone, tokens a second of many at once), `speech` (/v1/audio/speech speaks
sentences and /v1/audio/transcriptions transcribes them: the words must be right), `voice` (the conversations of
voice_to_voice.py). The default models; no peer.

Time: the server's start, some seconds for chat and speech, and half a minute in real time for each number of sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import voice_to_voice
from support.command_line import command_line
from support.conversation import server_process, spoken

QUESTIONS = ("Why is the sky blue?", "Tell me a short story about a lighthouse keeper.", "How do vaccines work?")
SENTENCES = (
    "The weather in the mountains changes very quickly.",
    "Please bring two bottles of water and a loaf of bread.",
    "My sister works in a hospital near the river.",
    "We will meet again on the first Monday of the month.",
    "The train to the city leaves in twenty minutes.",
)
CROWD = (1, 32, 128)
CROWD_TOKENS = 128


def post(url: str, body: bytes, kind: str = "application/json") -> bytes:
    """Return the answer to a POST; raise with the server's error text."""
    request = urllib.request.Request(url, body, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error.code} {error.read()[:300]!r}") from error


def complete(url: str, question: str, tokens: int) -> dict[str, Any]:
    """Return a greedy chat completion."""
    body = {
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": question}],
    }
    found: dict[str, Any] = json.loads(post(f"{url}/v1/chat/completions", json.dumps(body).encode()))
    return found


def first_token_ms(url: str, question: str) -> float:
    """Return the seconds until the first piece of a streamed answer."""
    body = {"temperature": 0, "max_tokens": 8, "stream": True}
    data = json.dumps({**body, "messages": [{"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if b'"content":"' in line.replace(b" ", b"") and b'"content":""' not in line.replace(b" ", b""):
                return (time.perf_counter() - begin) * 1e3
    raise RuntimeError("the stream had no content")


def chat(url: str, options: argparse.Namespace) -> None:
    """Ask over HTTP: alone, then many at once."""
    for question in QUESTIONS:
        answer = complete(url, question, 48)
        text = answer["choices"][0]["message"]["content"]
        print(f"chat: {question} → {' '.join(text.split())[:110]}", flush=True)
    times = [first_token_ms(url, f"Question {n}: {QUESTIONS[n % 3]}") for n in range(12)]
    print(f"chat: first token over HTTP {statistics.median(times):.1f} ms, median of {len(times)}", flush=True)
    for size in CROWD:
        if size > options.crowd:
            continue
        with ThreadPoolExecutor(size) as pool:
            begin = time.perf_counter()
            asked = [pool.submit(complete, url, f"{n}. {QUESTIONS[n % 3]}", CROWD_TOKENS) for n in range(size)]
            tokens = sum(each.result()["usage"]["completion_tokens"] for each in asked)
            seconds = time.perf_counter() - begin
        print(f"chat: {size:3} at once: {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f} tok/s", flush=True)


def speech(url: str, options: argparse.Namespace) -> None:
    """Speak sentences and transcribe them again."""
    wrong = total = 0
    for sentence in SENTENCES:
        begin = time.perf_counter()
        body = {"model": "tts-1", "voice": "alloy", "input": sentence, "response_format": "wav"}
        wav = post(f"{url}/v1/audio/speech", json.dumps(body).encode())
        said = time.perf_counter()
        heard = transcribe(url, wav)
        took = time.perf_counter() - said
        words, found = plain(sentence), plain(heard)
        errors = edits(words, found)
        wrong, total = wrong + errors, total + len(words)
        print(f"speech: said in {(said - begin) * 1e3:.0f} ms, heard in {took * 1e3:.0f} ms, {errors} of {len(words)} "
              f"words wrong: {heard.strip()}", flush=True)  # fmt: skip
    print(f"speech: {wrong} of {total} words wrong", flush=True)


def transcribe(url: str, wav: bytes) -> str:
    """Return the transcript of a WAV file."""
    mark = "voxlane-part"
    head = f'--{mark}\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--{mark}\r\n'
    head += 'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = head.encode() + wav + f"\r\n--{mark}--\r\n".encode()
    answer = post(f"{url}/v1/audio/transcriptions", body, f"multipart/form-data; boundary={mark}")
    text: str = json.loads(answer)["text"]
    return text


def plain(text: str) -> list[str]:
    """Return a text's words without case and punctuation, a number as a word."""
    return re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("20", "twenty").replace("2 ", "two ")).split()


def edits(one: list[str], other: list[str]) -> int:
    """Return how many words have to be changed, added or dropped to make one text of another."""
    before = list(range(len(other) + 1))
    for row, word in enumerate(one, 1):
        after = [row]
        for column, found in enumerate(other, 1):
            after.append(min(before[column] + 1, after[-1] + 1, before[column - 1] + (word != found)))
        before = after
    return before[-1]


def voice(url: str, options: argparse.Namespace) -> None:
    """Let people talk with the server."""
    clips = [spoken(url, question) for question in voice_to_voice.QUESTIONS[: options.questions]]
    results = {}
    for sessions in map(int, options.sessions.split(",")):
        results[sessions] = asyncio.run(voice_to_voice.measure(url, sessions, clips, options.rounds))
        median = statistics.median(turn["voice_to_voice_ms"] for turn in results[sessions])
        print(f"voice: {sessions} sessions, {len(results[sessions])} turns, median {median:.0f} ms", flush=True)
    voice_to_voice.report(results, f"device {options.device}")


PARTS: dict[str, Callable[[str, argparse.Namespace], None]] = {"chat": chat, "speech": speech, "voice": voice}


def attempt(name: str, url: str, options: argparse.Namespace) -> bool:
    """Run a part; print its failure and go on."""
    try:
        PARTS[name](url, options)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        print(f"{name}: FAILED, {type(error).__name__}: {error}", flush=True)
        return False
    return True


def main() -> int:
    """Start the server, run the parts, stop it; print the end of its log if a part failed."""
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="(%(default)s)")
    parser.add_argument("--device", default="auto", help="as of `voxlane serve` (%(default)s)")
    parser.add_argument("--sessions", default="1,8", help="people who talk at the same time, in turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="times each asks the questions (%(default)d)")
    parser.add_argument("--questions", type=int, default=5, help="how many of voice_to_voice.py's (%(default)d)")
    parser.add_argument("--crowd", type=int, default=max(CROWD), help="the most chats at once (%(default)d)")
    parser.add_argument("--log", type=Path, help="where the server's log goes; default: a temporary file")
    options = parser.parse_args()
    path = options.log or Path(tempfile.mkdtemp()) / "server.log"
    begin, fine = time.perf_counter(), False
    with path.open("w", encoding="utf-8") as log:
        try:
            with server_process("--device", options.device, log=log) as (url, _):
                print(f"server: ready after {time.perf_counter() - begin:.1f} s", flush=True)
                went = [attempt(name, url, options) for name in options.parts.split(",")]
                fine = all(went)
        except IndexError:
            print("server: it did not start", flush=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    start = [each for each in lines if "device=" in each or "stage=" in each]
    for line in start if fine else [*start, *lines[-40:]]:
        print(f"log: {line[:300]}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
