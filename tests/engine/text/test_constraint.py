"""Output follows its grammar, other requests are not delayed, and a bad schema fails only its own request."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from drive import PROMPTS, Driver, complete
from examples import examples, sweep
from full_pool import empty_prefix_cache, shrink
from hypothesis import given, settings
from simulation import Letters, Simulation, expected_text

from voxlane.engine.api import Cancel, ChatMessage, Pause, Refused, Resume, SamplingParams, Submit
from voxlane.engine.build.assemble import Assembly
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.text.constraint import MAX_PENDING, GrammarBusy, Grammars, call_grammar, json_grammar
from voxlane.engine.text.schema import MAX_OPTIONAL, SchemaError, read
from voxlane.engine.text.tokenizer import Tokenizer

from .test_tokenizer import PRE, write_byte_level_gguf, write_directory, write_sentencepiece_gguf

DEADLINE_S = 120.0


# ---- grammars over a vocabulary of characters


class Characters:
    """Single bytes, some words, special tokens that are spelt like JSON, and a space before every text."""

    words = (b'"a"', b"true", b'{"', b'": ', b"  ", b"\xc3\xa9")
    vocab_size = 3 + 256 + len(words)
    eos_ids = frozenset({1})
    special_ids = frozenset({0, 1, 2})

    def token_bytes(self, token: int) -> bytes:
        if token < 3:
            return b"{}"
        return bytes([token - 3]) if token < 259 else self.words[token - 259]

    def encode(self, text: str) -> list[int]:
        return [byte + 3 for byte in f" {text}".encode()]


def constraint(schema: dict[str, Any], vocabulary: int = Characters.vocab_size):
    grammar = Grammars(Characters(), vocabulary).compile(json_grammar(schema)).result(DEADLINE_S)
    return grammar.constraint(start=0)


@pytest.fixture(scope="module")
def made() -> Iterator[Grammars]:
    grammars = Grammars(Characters(), Characters.vocab_size)
    yield grammars
    grammars.close()


def written(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


def test_only_what_can_go_on_is_allowed() -> None:
    state = constraint({"enum": ["a", True]})
    allowed = state.allowed([])
    assert allowed is not None
    assert {token for token, good in enumerate(allowed) if good} == {ord('"') + 3, ord("t") + 3, 259, 260}
    after = state.allowed(written('"a'))
    assert after is not None
    assert {token for token, good in enumerate(after) if good} == {ord('"') + 3}
    assert not state.complete(written('"a'))
    assert state.complete(written('"a"'))


def test_the_end_is_allowed_where_the_value_may_end() -> None:
    state = constraint({"type": "integer"})
    assert not state.allowed([])[1]
    one = state.allowed(written("1"))
    assert one[1]
    assert one[ord("0") + 3]
    assert not state.complete(written("1"))
    assert state.complete([*written("1"), 1])


def test_special_tokens_and_padding_are_never_text() -> None:
    state = constraint({"type": "object"}, vocabulary=Characters.vocab_size + 40)
    allowed = state.allowed([])
    assert len(allowed) == Characters.vocab_size + 40
    assert not allowed[:3].any(), "a special token spelt like JSON is not JSON"
    assert not allowed[Characters.vocab_size :].any()


def test_a_model_may_know_fewer_tokens_than_its_tokenizer() -> None:
    allowed = constraint({"enum": [True]}, vocabulary=259).allowed([])
    assert len(allowed) == 259
    assert allowed.nonzero()[0].tolist() == [ord("t") + 3]


VOCABULARIES: dict[str, Callable[[Path], Path]] = {
    "byte-level GGUF": lambda path: write_byte_level_gguf(path / "t.gguf", "smollm", PRE["smollm"]()),
    "byte-level directory": lambda path: write_directory(path / "d", PRE["qwen2"]()),
    "sentencepiece GGUF": lambda path: write_sentencepiece_gguf(path / "t.gguf", space_prefix=False),
    "sentencepiece GGUF with a space first": lambda path: write_sentencepiece_gguf(path / "t.gguf", space_prefix=True),
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_every_kind_of_vocabulary_writes_json(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(VOCABULARIES[kind](tmp_path))
    schema = {"type": "object", "properties": {"hello": {"enum": ["hello wörld", 12]}}, "required": ["hello"]}
    grammar = Grammars(tokenizer, tokenizer.vocab_size).compile(json_grammar(schema)).result(DEADLINE_S)
    for seed in range(20):
        rng, state, tokens = random.Random(seed), grammar.constraint(0), []
        while not state.complete(tokens):
            tokens.append(int(rng.choice(state.allowed(tokens).nonzero()[0])))
        assert not tokenizer.special_ids & set(tokens)
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), schema)
    fixed = Grammars(tokenizer, tokenizer.vocab_size).compile(json_grammar({"const": "hello hello"})).result(DEADLINE_S)
    state, tokens = fixed.constraint(0), []
    while not state.complete(tokens):
        (only,) = state.allowed(tokens).nonzero()[0]
        tokens.append(int(only))
    if kind.startswith("byte-level"):
        assert tokens == tokenizer.encode('"hello hello"'), (
            "text that is given comes in the tokens the model is used to"
        )


def test_a_model_without_an_end_cannot_be_bound() -> None:
    class Endless(Characters):
        eos_ids = frozenset()

    grammars = Grammars(Endless(), Endless.vocab_size)
    for _ in range(2):
        with pytest.raises(SchemaError, match="no token that ends"):
            grammars.compile(json_grammar({"const": 1})).result(DEADLINE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_while_compiling_ends_those_who_wait_and_not_the_next() -> None:
    class Faulty(Characters):
        faults = 1

        def token_bytes(self, token: int) -> bytes:
            if self.faults:
                self.faults -= 1
                raise ZeroDivisionError
            return super().token_bytes(token)

    grammars = Grammars(Faulty(), Faulty.vocab_size)
    with pytest.raises(SchemaError):
        grammars.compile(json_grammar({"const": 1})).result(DEADLINE_S)
    assert grammars._thread is not None
    grammars._thread.join(DEADLINE_S)
    assert grammars.compile(json_grammar({"const": 2})).result(DEADLINE_S)


def test_a_wrong_token_is_a_dead_end_and_not_a_fault() -> None:
    state = constraint({"type": "integer"})
    assert state.allowed(written("x")) is None
    assert not state.complete(written("x"))


def test_grammars_are_compiled_once_and_the_waiting_are_bounded() -> None:
    gate = threading.Event()

    class Slow(Characters):
        def token_bytes(self, token: int) -> bytes:
            gate.wait(DEADLINE_S)
            return super().token_bytes(token)

    grammars = Grammars(Slow(), Slow.vocab_size)
    futures = [grammars.compile(json_grammar({"const": n})) for n in range(MAX_PENDING)]
    assert grammars.compile(json_grammar({"const": 0})) is futures[0]
    with pytest.raises(GrammarBusy):
        grammars.compile(json_grammar({"const": "one more"}))
    gate.set()
    assert all(future.result(DEADLINE_S) for future in futures)
    assert grammars.compile(json_grammar({"const": "one more"})).result(DEADLINE_S)


def test_others_run_while_a_grammar_is_compiled() -> None:
    gate = threading.Event()

    class Slow(Letters):
        def token_bytes(self, token: int) -> bytes:
            gate.wait(DEADLINE_S)
            return super().token_bytes(token)

    simulation = Simulation(blocks=32, host_blocks=0)
    factory = ChatJobFactory(simulation.intake, simulation.letters, Grammars(Slow(), Letters.vocab_size))
    simulation.core._factories._factories = {"chat": factory}
    free = SamplingParams(max_tokens=5, ignore_eos=True)
    simulation.send(
        Submit("bound", "complete", text="AB", sampling=SamplingParams(schema='{"type": "integer"}')),
        Submit("left", "complete", text="AB", sampling=SamplingParams(schema='{"type": "integer"}')),
        Submit("free", "complete", text="ABC", sampling=free),
    )
    while "free" not in simulation.ends:
        assert simulation.steps < 1000
        simulation.step()
    assert simulation.texts == {"free": expected_text("ABC", 5)}
    simulation.send(Cancel("left"))
    assert simulation.ends["left"].reason == "cancelled"
    gate.set()
    simulation.run()
    assert isinstance(simulation.ends["bound"], Refused), "no letter is JSON"


# ---- schemas


def test_a_chain_of_references_as_long_as_allowed_does_not_overflow_the_compiler() -> None:
    chain = {f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(255)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d255": {"type": "string"}}}
    read(json.dumps(schema))
    assert constraint(schema).allowed([]) is not None


def test_as_many_optional_properties_as_allowed_can_be_written_and_one_more_is_refused(made: Grammars) -> None:
    def choices(count: int, *names: str) -> list[dict[str, Any]]:
        one = {"type": "object", "additionalProperties": {}, "required": ["x"]}
        return [{**one, "properties": {f"{name}{n}": {} for n in range(count)} | {"x": {}}} for name in names]

    half = MAX_OPTIONAL // 2
    for start, allowed, too_many in (
        ("{", choices(MAX_OPTIONAL, "a")[0], choices(MAX_OPTIONAL + 1, "a")[0]),
        (
            "[{",
            {"type": "array", "items": {"anyOf": choices(half, "a", "b")}},
            {"items": {"oneOf": choices(half, *"abc")}},
        ),
        (
            '{"a": {',
            {
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "required": ["a"],
                "$defs": {"a": choices(MAX_OPTIONAL, "a")[0]},
            },
            {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": choices(half, *"abc")}}},
        ),
    ):
        bound = made.compile(json_grammar(read(json.dumps(allowed)))).result(DEADLINE_S).constraint(start=0)
        for end in range(len(start) + 1):
            assert bound.allowed(written(start[:end])) is not None, start
        with pytest.raises(SchemaError, match=f"more than {MAX_OPTIONAL} optional properties"):
            read(json.dumps(too_many))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"const": "SECRET"}}, "cannot be enforced: not"),
        ({"type": "array", "uniqueItems": True, "SECRET": 1}, "cannot be enforced: uniqueItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "SECRET"}, "type"),
        ({"$ref": "https://example.com/SECRET"}, r"\$ref"),
        ({"$ref": "#/$defs/SECRET"}, r"\$ref"),
        ({"type": "string", "pattern": "(?<=SECRET)x"}, "pattern"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "satisfied"),
        ({"enum": []}, "satisfied"),
        ({"type": "string", "format": ["SECRET"]}, "format"),
        ({"properties": {"a": {"format": {"SECRET": 1}}}}, "format"),
        ({"$ref": "#"}, "enforced"),
        ({"type": "integer", "multipleOf": 999_999_937}, "complex"),
        ({"allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for m in range(4)]} for n in range(12)]}, "complex"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_a_reason_and_no_content(schema, reason) -> None:
    with pytest.raises(SchemaError, match=reason) as refusal:
        constraint(schema)
    assert "SECRET" not in str(refusal.value)


KEYWORDS = (
    "type", "format", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs",
    "pattern", "minLength", "minimum", "multipleOf", "additionalProperties", "patternProperties", "prefixItems",
    "minItems", "not", "$schema", "$id", "x-guidance", "default",
)  # fmt: skip
VALUES = st.sampled_from(
    ["object", "string", "array", "date", "#", "#/$defs/a", "(", "", None, True, 0, -1, 1.5, 10**40]
)
SCHEMAS = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from((*KEYWORDS, "a")), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(600), deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), SCHEMAS, min_size=1, max_size=3))
def test_whatever_calls_itself_a_schema_is_compiled_or_refused(made: Grammars, schema: dict[str, Any]) -> None:
    with suppress(SchemaError):
        checked = read(json.dumps(schema))
        made.compile(json_grammar(checked)).result(DEADLINE_S)
    with suppress(SchemaError):
        made.compile(call_grammar([("f", {"type": "object", **schema})], "arguments")).result(DEADLINE_S)


def test_a_call_is_to_one_of_the_tools_and_references_stay_their_own() -> None:
    by_reference = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    tools = [
        ("f", {**by_reference, "$defs": {"x": {"const": 1}}}),
        ("g", {**by_reference, "$defs": {"x": {"const": 2}}}),
    ]
    grammar = Grammars(Characters(), Characters.vocab_size).compile(call_grammar(tools, "arguments")).result(DEADLINE_S)

    def accepts(text: str) -> bool:
        return grammar.constraint(0).complete(written(text))

    assert accepts('{"name": "f", "arguments": {"a": 1}}')
    assert accepts('{"name": "g", "arguments": {"a": 2}}')
    assert not accepts('{"name": "g", "arguments": {"a": 1}}')
    assert not accepts('{"name": "h", "arguments": {"a": 1}}')


# ---- the real model


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a small schema with all common keywords."""
    simple: list[dict[str, Any]] = [
        {"type": "string", "maxLength": rng.randint(1, 12)},
        {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
        {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "no-such-format"]), "maxLength": 40},
        {"type": "integer", "minimum": rng.randint(-9, 0), "maximum": rng.randint(1, 999)},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 5},
        {"type": ["boolean", "null"]},
        {"enum": rng.sample(["red", "green", 1, 2.5, None, "ünï"], 3)},
        {"const": rng.choice(["fixed", 7])},
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(simple)
    if rng.random() < 0.3:
        low = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": low, "maxItems": low + 2}
    if rng.random() < 0.2:
        return {"anyOf": [random_schema(rng, depth - 1), random_schema(rng, depth - 1)]}
    names = rng.sample(["name", "age", "colour", "größe", "a b"], rng.randint(0, 3))
    properties = {name: random_schema(rng, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": rng.sample(names, rng.randint(0, len(names)))}


@pytest.fixture
def driver(engine: Assembly) -> Iterator[Driver]:
    empty_prefix_cache(engine.core.scheduler.resources["chat"].pool)
    engine.core.scheduler.resources["chat"].swap_block_s = 1e-9
    yield Driver(engine.core)
    engine.core.scheduler.check()
    assert not engine.core.scheduler.requests


def bound(name: str, schema: dict[str, Any], **settings: Any) -> Submit:
    sampling = SamplingParams(schema=json.dumps(schema), **{"max_tokens": 120, **settings})
    return Submit(name, "chat", (ChatMessage("user", "Make up some data and write it as JSON."),), sampling=sampling)


@pytest.mark.weights
@pytest.mark.parametrize("seed", sweep(range(3)))
def test_whatever_the_model_says_is_json_of_the_schema(driver: Driver, seed: int) -> None:
    rng = random.Random(seed)
    schemas = {f"s{index}": random_schema(rng) for index in range(examples(10))}
    driver.send(*(bound(name, schema, temperature=1.0, seed=seed) for name, schema in schemas.items()))
    driver.run()
    whole = 0
    for name, schema in schemas.items():
        if driver.end(name).reason == "eos":
            jsonschema.validate(json.loads(driver.text(name)), schema, jsonschema.Draft202012Validator)
            whole += 1
        else:
            assert driver.end(name).stats.output_tokens == 120, "only max_tokens cuts it"
    assert whole >= 0.8 * len(schemas)


@pytest.mark.weights
def test_any_object_will_do_and_the_likeliest_of_few_are_told(driver: Driver) -> None:
    messages = (ChatMessage("user", "Write {} and nothing else."),)
    sampling = SamplingParams(schema="json", max_tokens=60, logprobs=5, stop=(":",), repetition_penalty=1.3, top_k=40)
    driver.send(Submit("o", "chat", messages, sampling=sampling))
    driver.run()
    assert driver.text("o").startswith("{")
    told = [item for message in driver.messages for item in getattr(message, "logprobs", ())]
    assert told
    assert all(item.logprob <= 0 and all(value > -1e30 for _, value in item.top) for item in told)


@pytest.mark.weights
@pytest.mark.parametrize("swap_block_s", sweep([1e-9, 1e9]))  # swapped out, or computed again
def test_bound_and_free_requests_do_not_notice_each_other(
    driver: Driver, engine: Assembly, swap_block_s: float
) -> None:
    def submits() -> list[Submit]:
        free = [complete(f"f{index}", prompt, 20) for index, prompt in enumerate(PROMPTS[:4])]
        schema = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"enum": ["a", "b"]}}}
        return free + [bound(f"b{seed}", schema, temperature=0.8, seed=seed, max_tokens=20) for seed in range(4)]

    alone = {}
    for submit in submits():
        driver.send(submit)
        driver.run()
        alone[submit.request_id] = driver.text(submit.request_id)
    scheduler = engine.core.scheduler
    scheduler.resources["chat"].swap_block_s = swap_block_s
    taken = shrink(scheduler.resources["chat"].pool, leave=14)
    try:
        together = Driver(engine.core)
        together.send(*submits())
        together.step(6)
        together.send(Pause(("b1",)), Pause(("f1",)))
        together.step(6)
        together.send(Resume("b1"), Resume("f1"))
        together.finish()
        assert {name: together.text(name) for name in alone} == alone
        assert sum(together.end(name).stats.preemptions for name in alone) > 0
    finally:
        for block in taken:
            scheduler.resources["chat"].pool.release(block)


@pytest.mark.weights
def test_nothing_is_guessed_for_a_bound_request(driver: Driver, engine: Assembly) -> None:
    schema = {"type": "array", "items": {"const": "the same words again"}, "minItems": 4, "maxItems": 4}
    scheduler = engine.core.scheduler
    before, scheduler.limits = scheduler.limits, dataclasses.replace(scheduler.limits, lookup_tokens=4)
    try:
        driver.send(bound("b", schema), complete("f", "a b c d a b c d a b c d a b c", 20))
        driver.run()
    finally:
        scheduler.limits = before
    assert json.loads(driver.text("b")) == ["the same words again"] * 4
    assert driver.end("b").stats.lookup_proposed == 0
    assert driver.end("f").stats.lookup_proposed > 0


@pytest.mark.weights
def test_a_bad_schema_is_refused_and_its_neighbour_served(driver: Driver) -> None:
    driver.send(bound("bad", {"not": {}}), bound("good", {"const": "yes"}), bound("again", {"not": {}}))
    driver.send(bound("odd", {"format": []}))
    driver.run()
    assert driver.end("bad").code == driver.end("again").code == driver.end("odd").code == "bad_request"
    assert driver.text("good") == '"yes"'
    assert driver.end("good").reason == "eos"
