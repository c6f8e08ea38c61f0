"""What is no reply is taken out, wherever the output is cut into pieces, and everything else stays as it was."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from session_simulation import STATS
from session_table import Table, submits

from voxlane.engine.api import Cancel, Finished, Tool
from voxlane.server.conversation.client_events import Stop, TextTurn
from voxlane.server.conversation.effects import SendToEngine
from voxlane.server.conversation.replies.cleaning import LEAST_REPEATED_WORDS, RepeatFilter, ReplyCleaner, TagFilter
from voxlane.server.conversation.server_events import Fault, ReplyText, Speech, Thought, TurnDone
from voxlane.server.conversation.values import SessionConfig

Filter = TagFilter | RepeatFilter | ReplyCleaner


def cleaned(made: Filter, *pieces: str) -> str:
    return "".join(map(made.push, pieces)) + made.finish()


@pytest.mark.parametrize(
    ("output", "reply"),
    [
        ("Hello.", "Hello."),
        ("<think>\nHm, France.\n</think>\n\nParis.", "Paris."),
        ("Well. <THINK>Hm.</think>Paris.", "Well. Paris."),
        ("<think>I will never stop", ""),
        ("<tool_call>\n{}\n</tool_call>", ""),
        ("It is <tool_response>18</tool_response>warm.", "It is warm."),
        ("\n<tool_response>\nIt is raining.\n</tool_response>", "It is raining.\n"),
        ("<tool_response>It is raining.", "It is raining."),
        ("<think>Hm.</think><tool_response>Rain.</tool_response> Bye. <tool_result>No.</tool_result>", "Rain. Bye. "),
        ("<tool_call>{}</tool_call><tool_response>18</tool_response>", ""),
        ("<think>A <tool_call> in it.</tool_call></think>Yes.", "Yes."),
        ("Reasons.</think> Paris.", "Reasons. Paris."),
        ("Paris.<|im_end|>\n<|im_start|>user\nAnd Rome?", "Paris."),
        ("<|im_start|>Paris.", "Paris."),
        ("Paris<file_sep> it <fim_middle>is</s>.", "Paris it is."),
        ("One<|object_ref_start|> two.", "One two."),
        ("Paris.<end_of_turn>\n<start_of_turn>user", "Paris."),
        ("a < b and b > c", "a < b and b > c"),
        ("Line<br>break <b>bold</b> <thinker> <3 <", "Line<br>break <b>bold</b> <thinker> <3 <"),
        ("a <| b |> c", "a <| b |> c"),
        ("Paris.<｜end▁of▁sentence｜>Rome.", "Paris."),
        ("<|" + "x" * 60 + "|>", "<|" + "x" * 60 + "|>"),
        ("x <thin", "x <thin"),
    ],
)
def test_tags(output: str, reply: str) -> None:
    assert cleaned(TagFilter(), output) == reply
    assert cleaned(TagFilter(), *output) == reply


PARTS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_end|>", "<|",
     "|>", "<", "</s>", "<br>", " ", "\n", "a", "The sky is blue. ", "It was so very late! ", "Dr. Who ", "Yes. ",
     "one two three four five", "e.g. "]
)  # fmt: skip
OUTPUTS = st.lists(PARTS, max_size=14).map("".join)


@given(OUTPUTS, st.data())
def test_where_it_is_cut_makes_no_difference(output: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=6)))
    pieces = [output[start:end] for start, end in zip([0, *places], [*places, len(output)], strict=True)]
    for made in (TagFilter, RepeatFilter):
        assert cleaned(made(), *pieces) == cleaned(made(), output)
    assert cleaned(ReplyCleaner(spoken=True), *pieces) == cleaned(ReplyCleaner(spoken=True), output)


@given(OUTPUTS)
def test_no_mark_is_left(output: str) -> None:
    assert not re.search(r"</?(think|tool_call|tool_response|s)>|<\|\w+\|>", cleaned(TagFilter(), output))


@given(st.text("ab <>/|.\n", max_size=60))
def test_what_has_no_mark_stays(output: str) -> None:
    if not re.search(r"<\|.*\|>", output):
        assert cleaned(TagFilter(), output) == output.lstrip()


@given(
    st.lists(st.sampled_from(["The sky is blue.", "It rains a lot here.", "No.", "Is it so, my friend?"]), max_size=9)
)
def test_no_sentence_is_said_twice(sentences: list[str]) -> None:
    made = RepeatFilter()
    shown = cleaned(made, " ".join(sentences))
    for sentence in set(sentences):
        if len(sentence.split()) >= LEAST_REPEATED_WORDS:
            assert shown.count(sentence) == 1 or made.over
            assert shown.count(sentence) <= 1
        elif not made.over:
            assert shown.count(sentence) == sentences.count(sentence)


def test_the_same_again_and_again_ends_the_reply() -> None:
    made = RepeatFilter()
    assert (
        made.push("The moon is round. I like the moon. The moon is round. ") == "The moon is round. I like the moon. "
    )
    assert not made.over
    assert made.push("I like the moon! And") == ""
    assert made.over
    assert made.push("so on. ") + made.finish() == ""


def test_a_refrain_is_left_out_once_and_the_song_goes_on() -> None:
    made = RepeatFilter()
    song = "Row your boat with me. The river is so wide. Row your boat with me. The day is so long. "
    assert cleaned(made, song) == song.replace("Row your boat with me. The day", "The day")
    assert not made.over


def test_what_begins_alike_is_shown_as_soon_as_it_differs() -> None:
    made = RepeatFilter()
    made.push("I like the green one. ")
    assert made.push("I like") == ""
    assert made.push(" the") == ""
    assert made.push(" red") == "I like the red"
    assert made.push(" one") == " one"


def test_titles_end_no_sentence() -> None:
    text = "He was seen by Dr. Smith. He was seen by Dr. Jones."
    assert cleaned(RepeatFilter(), text) == text


def test_written_replies_may_repeat_themselves() -> None:
    text = "The sky is blue. The sky is blue. The sky is blue. "
    assert cleaned(ReplyCleaner(spoken=False), text) == text
    assert cleaned(ReplyCleaner(spoken=True), text) == "The sky is blue. "


def test_a_reply_is_over_when_either_says_so() -> None:
    for text in ("Yes.<|im_end|>", "It is so blue. It is so blue. It is so blue. And"):
        made = ReplyCleaner(spoken=True)
        made.push(text)
        assert made.over


# ---- in a conversation


def talked(answer: str, config: SessionConfig | None = None) -> Table:
    table = Table(config, answer=answer)
    table.feed(TextTurn("hello"))
    table.work()
    table.wait(30)
    return table


def captions(table: Table) -> str:
    return "".join(event.text for event in table.of(ReplyText))


def test_captions_speech_and_history_agree() -> None:
    table = talked("<think>Let me see. A greeting.</think> Good day to you. <file_sep>Good day to you. How are you?")
    reply = "Good day to you. How are you?"
    assert captions(table).strip() == reply
    assert table.session.history.messages[-1].content == reply
    words = [word for frame in table.of(Speech) for word in frame.words]
    assert [reply[word.start : word.end] for word in words] == reply.split()
    assert table.of(TurnDone)[-1].how == "done"


def test_a_model_that_goes_on_with_our_turn_is_stopped() -> None:
    table = talked("It is noon. <|im_end|> <|im_start|>user And now? " + "More of it. " * 50)
    assert captions(table) == "It is noon. "
    assert [event.reason for event in table.of(Thought)] == ["stop"]
    assert Cancel("s/chat1") in [effect.message for effect in table.log if isinstance(effect, SendToEngine)]
    assert not table.of(Fault)
    table.feed(Finished("s/chat1", 1, "cancelled", STATS))  # as the engine answers that Cancel
    assert not table.of(Fault)
    assert [event.how for event in table.of(TurnDone)] == ["done"]


NO_CALL = '<tool_call> {"name": "who knows"} </tool_call>'
TOOLS = SessionConfig(tools=(Tool("weather"),))


def asked_again() -> Table:
    """Return a table whose model has written no call, for 30 and 7 tokens, and was asked again."""
    table = Table(TOOLS, answer="It is noon.")
    table.engine.first_answers.append(NO_CALL)
    table.feed(TextTurn("hello"))
    queue = table.engine.work["s/chat1"].queue
    queue[-1] = Finished("s/chat1", 1, "eos", structs.replace(STATS, prompt_tokens=30, output_tokens=7))
    while "s/chat1" in table.engine.work:
        table.feed(table.engine.bring("s/chat1"))
    return table


def test_a_model_that_writes_a_call_that_is_none_is_asked_again_without_tools() -> None:
    table = asked_again()
    name = submits(table, "chat")[-1].request_id
    queue = table.engine.work[name].queue
    queue[-1] = Finished(name, 1, "eos", structs.replace(STATS, prompt_tokens=20, output_tokens=3))
    table.work()
    table.wait(30)
    assert [submit.tool_choice for submit in submits(table, "chat")] == ["auto", "none"]
    first, second = submits(table, "chat")
    assert first.messages == second.messages
    assert captions(table).strip() == table.session.history.messages[-1].content == "It is noon."
    assert table.of(Speech)
    (thought,) = table.of(Thought)
    assert (thought.prompt_tokens, thought.output_tokens) == (50, 10), "both are counted"
    assert [event.how for event in table.of(TurnDone)] == ["done"]


@pytest.mark.parametrize(
    ("config", "asked"),
    [(TOOLS, ["auto", "none"]), (replace(TOOLS, tool_choice="none"), ["none"]), (SessionConfig(), ["auto"])],
)
def test_it_is_asked_again_once_and_only_if_it_had_tools(config: SessionConfig, asked: list[str]) -> None:
    table = talked(NO_CALL, config)
    assert [submit.tool_choice for submit in submits(table, "chat")] == asked
    assert [event.how for event in table.of(TurnDone)] == ["done"]


def test_a_reply_that_is_asked_for_again_can_be_cancelled() -> None:
    table = asked_again()
    table.feed(Stop())
    again = submits(table, "chat")[-1].request_id
    assert Cancel(again) in [effect.message for effect in table.log if isinstance(effect, SendToEngine)]
    assert again not in table.engine.work
    assert [(event.prompt_tokens, event.output_tokens) for event in table.of(Thought)] == [(30, 7)]
    assert [event.how for event in table.of(TurnDone)] == ["interrupted"]


def test_thoughts_alone_are_an_empty_reply() -> None:
    table = talked("<think>I do not know what to say about")
    assert captions(table) == ""
    assert not table.of(Speech)
    assert [event.how for event in table.of(TurnDone)] == ["done"]
