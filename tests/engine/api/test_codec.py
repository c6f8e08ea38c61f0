"""Messages survive the wire, and bytes that are no message are refused."""

from __future__ import annotations

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given

from voxlane.engine import api

texts = st.text(max_size=20)
numbers = st.floats(allow_nan=False)
sampling = st.builds(
    api.SamplingParams,
    temperature=numbers,
    logit_bias=st.lists(st.tuples(st.integers(0, 9), numbers), max_size=3).map(tuple),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(texts, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
)
uses = st.builds(api.ToolUse, texts, texts, texts)
submits = st.builds(
    api.Submit,
    texts,
    st.sampled_from(["chat", "complete", "score", "probe"]),
    messages=st.lists(st.builds(api.ChatMessage, texts, texts, st.tuples(uses), texts), max_size=3).map(tuple),
    text=texts,
    sampling=sampling,
    priority=st.sampled_from(list(api.Priority)),
    deadline_s=st.none() | numbers,
    epoch=st.integers(0, 1 << 31),
    tools=st.lists(st.builds(api.Tool, texts, texts, texts), max_size=2).map(tuple),
    tool_choice=texts,
)
pieces = st.binary(max_size=4)
logprobs = st.builds(api.TokenLogprob, pieces, numbers, st.lists(st.tuples(pieces, numbers), max_size=3).map(tuple))
messages = st.one_of(
    submits,
    st.builds(api.Configure, st.builds(api.EngineConfig, model=texts, step_budget_ms=st.floats(0, 60_000))),
    st.builds(api.Cancel, texts),
    st.builds(api.Pause, st.lists(texts, max_size=3).map(tuple)),
    st.just(api.Shutdown()),
    st.just(api.Ping()),
    st.just(api.Pong()),
    st.builds(api.Text, texts, st.integers(0, 9), texts, st.lists(logprobs, max_size=2).map(tuple)),
    st.builds(api.ToolCall, texts, st.integers(0, 9), texts, texts, texts),
    st.builds(api.Probability, texts, st.integers(0, 9), numbers),
    st.builds(api.Refused, texts, st.integers(0, 9), st.just("too_long"), texts),
    st.builds(api.Loading, texts, numbers),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message):
    assert api.decode(api.encode(message)) == message


@given(st.integers(0, 5) | st.integers(api.FRAGMENT_BYTES - 20, 3 * api.FRAGMENT_BYTES))
def test_a_long_message_travels_in_packets(size):
    message = api.Submit("r", "complete", text="x" * size)
    packets = api.fragments(api.encode(message))
    assert all(len(packet) <= api.FRAGMENT_BYTES for packet in packets)
    assembler = api.Assembler()
    results = [assembler.feed(packet) for packet in packets]
    assert results[-1] == message
    assert all(result is None for result in results[:-1])
    assert assembler.feed(api.fragments(api.encode(api.Shutdown()))[0]) == api.Shutdown()


@given(st.lists(messages | st.builds(api.Text, texts, st.just(0), st.integers(0, 9000).map("x".__mul__)), max_size=90))
def test_messages_share_packets_and_come_back_in_order(sent):
    packets, assembler = api.bundle(sent), api.Assembler()
    assert all(len(packet) <= api.FRAGMENT_BYTES for packet in packets)
    assert [message for packet in packets for message in assembler.messages(packet)] == sent


def test_a_step_of_text_is_a_few_packets():
    assert len(api.bundle([api.Text(f"r{n}", 0, "word") for n in range(256)])) == 256 // api.BUNDLE


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x07", b"\x91\x07", b"\x91\x91\x07"])
def test_what_is_no_list_of_messages_is_refused(data):
    with pytest.raises(api.UndecodableMessage):
        api.Assembler().messages(b"\x02" + data)


def test_a_message_over_the_limit_is_refused_at_both_ends():
    with pytest.raises(api.UndecodableMessage, match="over the limit"):
        api.fragments(b"x" * (api.MAX_MESSAGE_BYTES + 1))
    assembler = api.Assembler()
    packet = b"\x01" + b"x" * (api.FRAGMENT_BYTES - 1)
    for _ in range(api.MAX_MESSAGE_BYTES // (api.FRAGMENT_BYTES - 1)):
        assert assembler.feed(packet) is None
    with pytest.raises(api.UndecodableMessage, match="over the limit"):
        assembler.feed(packet)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_message_or_refused(data):
    try:
        message = api.decode(data)
    except api.UndecodableMessage:
        return
    assert api.decode(api.encode(message)) == message


@pytest.mark.parametrize(
    "parts",
    [
        [], ["x"], [4], [True, "s"], [["Ping"]], ["Value"], ["_Message"], ["ChatMessage", "user", "x"], ["Submit"],
        ["Resume"], ["Resume", 5], ["Resume", b"a"], ["Resume", "a", "b"], ["Ping", None], {"Ping": 1},
        ["Configure", [1]], ["Configure", {"model": 1}], ["Configure", {"max_batch": -1}],
        ["Configure", {"policy": "slowest"}], ["Submit", "r", "sing"], ["Submit", "r", "chat", [["user"]]],
        ["Submit", "r", "chat", [["user", "x", [], "", ""]]], ["Submit", "r", "chat", "user"],
        ["Submit", "r", "chat", [], "", {}], ["Submit", "r", "chat", [], "", [0.0] * 17],
        ["Submit", "r", "chat", [], "", [0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, [[1]]]],
        ["Submit", "r", "chat", [], "", [], [], [], 3], ["Text", "a", 0, b"x", [], 3], ["Text", "a", True, "x", [], 3],
        ["Text", "a", 0.5, "x", [], 3], ["Text", "a", 0, "x", [], None], ["Text", "a", 0, "x", 0, 3],
        ["Text", "a", 0, "x", [1], 3], ["Samples", "a", 0, 0, "ab", []], ["Probability", "a", 0, True],
        ["Probability", "a", 0, "1"],
    ],
)  # fmt: skip
def test_messages_of_the_wrong_shape_are_refused(parts):
    packed = msgpack.packb(parts)
    with pytest.raises(api.UndecodableMessage):
        api.decode(packed)
    with pytest.raises(api.UndecodableMessage):
        api.Assembler().messages(b"\x02\x91" + packed)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,
        b"\x94" + b"".join(map(msgpack.packb, ("Submit", "r", "chat"))) + b"\x91" * 100_000,
        b"\x92" + msgpack.packb("Configure") + b"\x81" + msgpack.packb("unknown") + b"\x91" * 100_000,
        b"\x92" + msgpack.packb("Resume") + b"\xa1\xff",  # no UTF-8
        api.encode(api.Ping()) + b"\x00",
        api.encode(api.Resume("r"))[:-1],
        b"\xdd\xff\xff\xff\xff" + msgpack.packb("Ping"),  # an array of 4 billion items
        b"\x92" + msgpack.packb("Pause") + b"\xdd\xff\xff\xff\xff" + msgpack.packb("r"),
    ],
)
def test_bytes_that_no_message_has_are_refused(data):
    with pytest.raises(api.UndecodableMessage):
        api.decode(data)


def test_values_cannot_be_changed():
    with pytest.raises(AttributeError):
        api.Resume("r").request_id = "s"
    assert len({api.Resume("r"), api.Resume("r"), api.Resume("s"), api.Cancel("r")}) == 3


@pytest.mark.parametrize("packet", [b"", b"\x00", b"\x02ab"])
def test_packets_of_the_wrong_shape_are_refused(packet):
    with pytest.raises(api.UndecodableMessage):
        api.Assembler().feed(packet)
