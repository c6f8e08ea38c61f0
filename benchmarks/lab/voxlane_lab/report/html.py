"""The page of a run: one HTML file that needs nothing else. No address outside is asked for anything.

Jinja2 escapes every text; the data of the calls are JSON inside a block that no browser runs; the script of the page is
the only one that its policy allows.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, StrictUndefined

from voxlane_lab.report.drawing import draw
from voxlane_lab.report.timeline import PEAKS_PER_S
from voxlane_lab.report.view import Calls, Page, page_of
from voxlane_lab.results import RunResult
from voxlane_lab.values import USER_RATE

SIDES = {"sent": "sent", "got": "from the server", "card": "sound card"}
VERDICTS = {"met": "met", "missed": "missed", "not_measurable": "not measurable"}


def write_report(result: RunResult, calls: Calls, path: Path) -> None:
    """Write the page of a run; `calls` has the recordings, by scenario and repeat."""
    path.write_text(rendered(page_of(result, calls)), encoding="utf-8")


def rendered(page: Page) -> str:
    """Return the page as HTML."""
    calls = draw(page)
    script = _file("report.js")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    ).from_string(_file("template.html"))
    return template.render(
        page=page,
        css=_file("report.css"),
        dark=_file("dark.css"),
        script=script,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        data=_json({"rate": USER_RATE, "peaks_per_s": PEAKS_PER_S, "sides": SIDES, "calls": calls}),
        sides=SIDES,
        verdict_words=VERDICTS,
    ).lstrip()


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _json(value: Any) -> str:
    """Return JSON that cannot end the block it stands in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
