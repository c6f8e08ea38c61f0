"""Documents lead somewhere: links and anchors exist, every picture is shown, every module has its sentence."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TOLD_TOGETHER = ("client_js/demo", "engine/api", "engine/kernels/triton", "server/api/reference")
"""Folders that architecture.md tells of in one sentence."""


def links(page: Path) -> list[str]:
    found = (first or second for first, second in LINK.findall(page.read_text(encoding="utf-8")))
    return [link for link in found if not link.startswith(("http://", "https://"))]


@cache
def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_links_lead_somewhere() -> None:
    dead = [(page.name, link) for page in PAGES for link in links(page) if not leads_somewhere(page, link)]
    assert dead == []


def test_every_picture_is_shown() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    assert [path.name for path in sorted(ROOT.glob("docs/img/*")) if path not in shown] == []


def test_every_module_has_its_sentence() -> None:
    told = re.findall(r"`([\w/*-]+\.(?:py|js))`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    patterns = {name for name in told if "*" in name}
    names = set(told) - patterns
    found = [path for part in ("server", "engine", "codecs") for path in (ROOT / part).rglob("*.py")]
    modules = [path.relative_to(ROOT) for path in (*found, *(ROOT / "client_js").glob("*.js"))]

    def is_told(module: Path) -> bool:
        endings = {"/".join(module.parts[start:]) for start in range(len(module.parts))}
        return bool(endings & names) or any(module.match(pattern) for pattern in patterns)

    untold = [str(module) for module in modules if module.name != "__init__.py" and not is_told(module)]
    assert sorted(module for module in untold if not module.startswith(TOLD_TOGETHER)) == []


def test_a_decision_is_short() -> None:
    for page in ROOT.glob("docs/decisions/*.md"):
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            heading, _, body = section.partition("\n")
            assert len(body.split()) <= 120, f"{page.name}: {heading}"
