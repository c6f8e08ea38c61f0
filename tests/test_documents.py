"""Documents lead somewhere: links and anchors exist, every picture is shown, every module has its sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TOLD_TOGETHER = ("client_js/demo", "engine/api", "engine/kernels/triton", "server/api/reference")
"""Folders that architecture.md tells of in one sentence."""


def links(page: Path) -> list[str]:
    found = (first or second for first, second in LINK.findall(page.read_text(encoding="utf-8")))
    return [link for link in found if not link.startswith(("http://", "https://"))]


def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_picture_is_shown() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    assert [path.name for path in sorted(ROOT.glob("docs/img/*")) if path not in shown] == []


def test_every_module_has_its_sentence() -> None:
    told = re.findall(r"`([\w/*-]+\.(?:py|js))`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    modules = [
        path.relative_to(ROOT) for part in ("server", "engine", "codecs") for path in (ROOT / part).rglob("*.py")
    ]
    modules += [path.relative_to(ROOT) for path in (ROOT / "client_js").glob("*.js")]
    missing = [
        str(module)
        for module in sorted(modules)
        if module.name != "__init__.py"
        and not str(module).startswith(TOLD_TOGETHER)
        and not any(module.match(name) for name in told)
    ]
    assert missing == []
