"""The table of foreign clients in the documents is the one that `make soak` checks."""

from __future__ import annotations

from pathlib import Path

from client_table import CLIENTS, DOCUMENT, NOT_OFFERED, REFUSED, SCENARIOS, WORKS, rows, split

CLIENTS_FOLDER = Path(__file__).parent / "clients"


def test_the_document_has_the_table() -> None:
    _, table, _ = split(DOCUMENT.read_text())
    assert table == "".join(rows()), "run: python tests/support/clients/client_table.py"


def test_every_row_names_what_exists() -> None:
    assert len({one.key for one in CLIENTS}) == len(CLIENTS)
    makefile = (CLIENTS_FOLDER.parents[1] / "Makefile").read_text()
    listed = next(line for line in makefile.splitlines() if line.startswith("CLIENTS :=")).split()
    for one in CLIENTS:
        assert (CLIENTS_FOLDER / one.script[0]).is_file(), one.key
        assert not one.environment or one.environment in listed, one.key
        assert set(one.others) <= set(SCENARIOS), one.key
        assert set(one.others.values()) <= {NOT_OFFERED, REFUSED}, one.key
        assert any(one.result(scenario) in (WORKS, REFUSED) for scenario in SCENARIOS), one.key
