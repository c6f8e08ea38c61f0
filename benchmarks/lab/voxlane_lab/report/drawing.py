"""Which calls the page draws, opens and embeds, and what it draws of them. Pure."""

from __future__ import annotations

from typing import Any

from voxlane_lab.attribution import owned
from voxlane_lab.report.timeline import events, response_words, shortened, sound, timeline
from voxlane_lab.report.view import CallSection, Page
from voxlane_lab.values import Recording

MOST_SOUND = 11_000_000
"""Characters of sound in the page. Other calls play from the files beside it."""
MOST_DRAWN = 80
"""Calls that the page draws; the others have their figures in a table."""
MOST_OPEN = 3
"""Calls that are open at first."""


def draw(page: Page) -> list[dict[str, Any]]:
    """Choose the calls that are drawn, open and embedded; return their data."""
    ranked = _ranked(page)
    drawn = [call for call in ranked[:MOST_DRAWN] if call.recording is not None]
    for call in ranked[: MOST_OPEN if len(page.scenarios) == 1 else 1]:
        call.open = True
    data, spent, embedded = [], 0, 0
    for number, call in enumerate(drawn):
        recording = call.recording
        assert recording is not None
        one = _drawn(call, recording)
        inside = sound(recording)
        if spent + len(inside) <= MOST_SOUND:
            one["sound"], spent, embedded = inside, spent + len(inside), embedded + 1
        one["file"] = call.file
        call.sound_words = "The same sound as a file:" if "sound" in one else "The sound of this call is not inside:"
        call.data = number
        data.append(one)
    page.sound_line = _sound_line(embedded, len(drawn), len(ranked))
    return data


def _ranked(page: Page) -> list[CallSection]:
    """Return all calls: the worst of each scenario, the first of each, and then the others, the worst first."""
    worst = [max(one.calls, key=lambda call: call.badness) for one in page.scenarios if one.calls]
    first = [one.calls[0] for one in page.scenarios if one.calls]
    every = [call for one in page.scenarios for call in one.calls]
    order = [*sorted(worst, key=lambda call: -call.badness), *first, *sorted(every, key=lambda call: -call.badness)]
    return list({call.id: call for call in order}.values())


def _drawn(call: CallSection, recording: Recording) -> dict[str, Any]:
    runs = owned(recording)
    one = timeline(recording, call.figures, call.limits, runs)
    call.length = one["length"]
    call.owners = one["responses"][:12]
    call.has_stale, call.has_held = bool(one["stale"]), bool(one["held"])
    call.events = one["events"]
    every = len(events(recording.occurrences, most=None))
    call.events_left = every if every > len(call.events) else 0
    call.texts = [(response_words(name), shortened(text, 2_000)) for name, text in recording.texts.items() if text]
    call.texts += [(f"remembered: {shortened(role, 40)}", shortened(text, 2_000)) for role, text in recording.history]
    return one


def _sound_line(embedded: int, drawn: int, calls: int) -> str:
    if embedded == calls:
        return (
            "The sound of all calls is inside this file." if calls > 1 else "The sound of the call is inside this file."
        )
    line = f"The sound of {embedded} of {calls} calls is inside this file: the worst and the first of each scenario."
    line += " The others play from the folder calls/ beside it."
    return line if drawn == calls else f"{line} {drawn} calls are drawn; the figures of the others are in their tables."
