"""Documents lead somewhere: links and anchors exist, every picture is shown, the README's figures are measured."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


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


def test_architecture_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = ("server", "engine", "codecs", "client_js", "tests")
    paths = [str(path) for folder in folders for path in (ROOT / folder).rglob("*.*")]
    named = set(re.findall(r"`([\w/]+\.(?:py|js|cpp))`", page))
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in paths)] == []


def test_a_decision_is_short() -> None:
    for page in ROOT.glob("docs/decisions/*.md"):
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            heading, _, body = section.partition("\n")
            assert len(body.split()) <= 120, f"{page.name}: {heading}"


def test_the_figures_of_the_readme_are_measured() -> None:
    figure = re.compile(r"\d(?:[\d.,]*\d)?")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Measured\n")[2].partition("\n## ")[0]
    shown = set(figure.findall(readme))
    assert len(shown) > 30
    assert shown - set(figure.findall((ROOT / "docs" / "measured.md").read_text(encoding="utf-8"))) == set()


def test_the_glossary_has_each_word_once() -> None:
    words = re.findall(
        r"^- \*\*([^*]+)\*\*:", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(words) > 50
    assert sorted({word for word in words if words.count(word) > 1}) == []
