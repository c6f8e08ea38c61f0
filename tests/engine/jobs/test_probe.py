"""Is the user's turn over? What the model thinks, what that is worth, and what it leaves behind for the reply."""

from __future__ import annotations

import itertools

import pytest
from drive import Driver, chat_config
from examples import SOAK

from voxlane.engine.api import ChatMessage, Finished, Probability, SamplingParams, Started, Submit, Tool
from voxlane.engine.build.assemble import Assembly, assemble
from voxlane.engine.text.tokenizer import Tokenizer

pytestmark = pytest.mark.weights

# Each cut in two where a person might hesitate.
SENTENCES = """\
What is the weather like in/ Paris today?
Can you tell me a/ joke?
I would like to book a table for/ two people tomorrow evening.
Please set a timer for/ ten minutes.
How do I get to/ the train station from here?
My favourite colour is/ blue.
I think we should/ go home now.
Could you explain how/ a telephone works?
Turn off the/ lights in the kitchen.
Who wrote the/ first book about computers?
I have been trying to/ call you all morning.
What time does the/ next bus leave?
Tell me something interesting about/ whales.
I want to order a/ large pizza with mushrooms.
Do you know where/ my keys are?
Is it going to/ rain tomorrow?
Remind me to/ buy milk on Friday.
The problem is that my/ computer does not start.
Why is the sky/ blue?
I need to change my/ flight to London.
Play some music by/ the Beatles.
Well, I was wondering if/ you could help me.
How much does it/ cost to send a letter to Japan?
When I was a child, we/ lived near the sea.
Stop the/ music.
Let me think about/ it.
What is the capital of/ Australia?
I am looking for a/ good restaurant nearby.
If you have time, can you/ read me the news?
She told me that/ she would come later.
Send a message to/ my brother and say I am late.
What should I cook for/ dinner tonight?
I do not understand why/ this is so difficult.
Where can I buy/ a new phone?
How many people live in/ Germany?
Give me three reasons to/ learn a new language.
Yesterday I went to/ the doctor because my back hurts.
Are you able to/ speak French?
My name is/ Anna and I live in Berlin.
What is the difference between/ a crocodile and an alligator?
Thank you very/ much.
Yes, that would/ be great.
No, I do not want/ that.
I am fine, and how/ are you?
Wait, I/ have another question.
Can we talk about/ something else?
It depends on/ the price.
The number is five, five/ two, nine, one.
Maybe we could meet at/ the station at six.
First I would like to/ know how old you are.""".splitlines()
TALK = (
    ChatMessage("system", "You are a helpful voice assistant. Answer briefly."),
    ChatMessage("user", "Hello!"),
    ChatMessage("assistant", "Hello! How can I help you?"),
)


@pytest.fixture(scope="module")
def engine() -> Assembly:
    return assemble(chat_config(kv_memory_mib=96))


@pytest.fixture
def driver(engine: Assembly) -> Driver:
    return Driver(engine.core)


def probe(driver: Driver, messages: tuple[ChatMessage, ...], name: str = "p", **settings) -> float:
    driver.send(Submit(name, "probe", messages, **settings))
    driver.run()
    (value,) = (m.value for m in driver.messages if isinstance(m, Probability) and m.request_id == name)
    return value


def area_under_curve(high: list[float], low: list[float]) -> float:
    """Return how often a value of the first kind is above one of the second."""
    return sum(a > b for a, b in itertools.product(high, low)) / (len(high) * len(low))


def as_recognised(text: str) -> str:
    """Return a text with a full stop, as recognition likes to end even half a sentence."""
    return text.rstrip(".?! ") + "."


@pytest.mark.parametrize("before", [TALK, pytest.param((), marks=pytest.mark.soak)], ids=["later", "first turn"])
def test_whole_sentences_are_told_from_beginnings(driver: Driver, before) -> None:
    sentences = SENTENCES if SOAK else SENTENCES[::2]
    for index, sentence in enumerate(sentences):
        driver.send(
            Submit(f"whole{index}", "probe", (*before, ChatMessage("user", as_recognised(sentence.replace("/", ""))))),
            Submit(f"begun{index}", "probe", (*before, ChatMessage("user", as_recognised(sentence.partition("/")[0])))),
        )
    driver.run()
    values = {m.request_id: m.value for m in driver.messages if isinstance(m, Probability)}
    whole = [values[f"whole{index}"] for index in range(len(sentences))]
    begun = [values[f"begun{index}"] for index in range(len(sentences))]
    assert all(0 <= value <= 1 for value in values.values())
    assert area_under_curve(whole, begun) > 0.99
    assert sum(value < 0.5 for value in whole) <= 3
    assert sum(value >= 0.5 for value in begun) <= 2


def test_a_probe_is_one_number_and_then_over(driver: Driver) -> None:
    driver.send(Submit("p", "probe", (ChatMessage("user", "What time is"),), epoch=4))
    driver.run()
    mine = [message for message in driver.messages if getattr(message, "request_id", "") == "p"]
    assert [type(message) for message in mine] == [Started, Probability, Finished]
    assert {message.epoch for message in mine} == {4}
    assert driver.end("p").reason == "length"
    assert driver.end("p").stats.output_tokens == 0


def test_the_reply_finds_the_prompt_computed(driver: Driver) -> None:
    tools = (Tool("get_weather", "Get the weather.", '{"type": "object", "properties": {"city": {}}}'),)
    text = "I have been thinking about the weather in Paris and would like to know what it is like today"
    messages = (*TALK, ChatMessage("user", f"{text}?"))
    probe(driver, (*TALK, ChatMessage("user", text)), tools=tools)
    probe(driver, messages, "again", tools=tools)
    driver.send(Submit("reply", "chat", messages, tools=tools, sampling=SamplingParams(max_tokens=1)))
    driver.step()
    (started,) = (m for m in driver.messages if isinstance(m, Started) and m.request_id == "reply")
    driver.run()
    left = started.prompt_tokens - started.cached_tokens
    assert left <= 16 + 8, "one block that was not full, the question mark and the assistant's header"
    assert driver.end("again").stats.cached_tokens > 0


def test_a_probe_does_not_depend_on_the_batch(driver: Driver) -> None:
    asked = [(*TALK, ChatMessage("user", sentence.replace("/", ""))) for sentence in SENTENCES[:6]]
    alone = [probe(driver, messages, f"alone{index}") for index, messages in enumerate(asked)]
    driver.send(*(Submit(f"b{index}", "probe", messages, tenant="cold") for index, messages in enumerate(asked)))
    driver.run()
    together = {m.request_id: m.value for m in driver.messages if isinstance(m, Probability)}
    assert [together[f"b{index}"] for index in range(6)] == alone


@pytest.mark.parametrize("messages", [(), (ChatMessage("assistant", "Hello"),)], ids=["nobody", "the assistant"])
def test_only_the_user_can_be_about_to_finish(driver: Driver, messages) -> None:
    driver.send(Submit("p", "probe", messages))
    assert driver.end("p").code == "bad_request"


def test_an_open_turn_is_the_start_of_the_closed_one(smollm2_path) -> None:
    tokenizer = Tokenizer.open(smollm2_path)
    messages = [*TALK, ChatMessage("user", "What is <|im_end|> in Paris")]
    tokens, ends = tokenizer.encode_open(messages)
    closed = tokenizer.encode_chat(messages)
    assert tokens == closed[: len(tokens)]
    assert closed[len(tokens)] in ends
    assert tokenizer.eos_ids < ends
    assert {tokenizer.decode([token]) for token in ends} >= {".", "?", "!"}
    with_punctuation, _ = tokenizer.encode_open([*TALK, ChatMessage("user", "What is <|im_end|> in Paris ...?")])
    assert with_punctuation == tokens
