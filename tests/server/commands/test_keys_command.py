"""`voxlane keys`: what is written, what is shown, and what is refused."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from voxlane.server.cli import main
from voxlane.server.tenants.accounts import Tenants
from voxlane.server.tenants.key_file import KEY_PREFIX, read_keys


def test_a_key_is_shown_once_and_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys.json")
    limits = ["--conversations", "5", "--requests-per-minute", "60", "--audio-minutes-per-minute", "2.5"]
    assert main(["keys", "add", "acme", "--file", file, "--priority", "high", *limits]) == 0
    told = capsys.readouterr()
    key = told.out.strip()
    assert key.startswith(KEY_PREFIX)
    assert len(key) == len(KEY_PREFIX) + 43  # 256 bits
    assert "shown this once" in told.err
    assert Tenants("", Path(file)).admit(key).name == "acme"
    (record,) = read_keys(Path(file))
    assert (record.conversations, record.requests_per_minute, record.audio_minutes_per_minute) == (5, 60, 2.5)
    assert main(["keys", "list", "--file", file]) == 0
    listed = capsys.readouterr().out
    assert "acme" in listed
    assert "high" in listed
    assert key not in listed
    assert record.hash not in listed


def test_a_key_is_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys.json")
    assert main(["keys", "add", "acme", "--file", file]) == 0
    assert main(["keys", "revoke", "acme", "--file", file]) == 0
    assert read_keys(Path(file)) == ()
    assert main(["keys", "revoke", "acme", "--file", file]) == 2
    assert "there is no key of acme" in capsys.readouterr().err


def test_the_file_may_be_the_configurations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "voxlane.toml"
    config.write_text(f'[keys]\nfile = "{tmp_path}/keys.json"\n')
    assert main(["keys", "add", "acme", "--config", str(config)]) == 0
    assert main(["keys", "list", "--config", str(config)]) == 0
    assert "acme" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "Acme Corp", "--file", "k"], "a name has up to 64"),
        (["add", "default", "--file", "k"], "another name"),
        (["add", "acme"], "which file?"),
        (["add", "acme", "--file", "missing/keys.json"], "No such file"),
        (["add", "acme", "--file", "k", "--conversations", "-1"], "--conversations must be a whole number from 0"),
        (["add", "acme", "--file", "k", "--audio-minutes-per-minute", "nan"], "--audio-minutes-per-minute must be"),
        (["list", "--file", "k"], "does not exist"),
        (["revoke", "acme", "--file", "k"], "does not exist"),
    ],
)
def test_what_cannot_be_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keys", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "k").exists()


def test_a_name_is_given_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys.json")
    assert main(["keys", "add", "acme", "--file", file]) == 0
    assert main(["keys", "add", "acme", "--file", file]) == 2
    assert "has a key already" in capsys.readouterr().err


def test_commands_at_one_time_lose_no_key(tmp_path: Path) -> None:
    file, names = str(tmp_path / "keys.json"), [f"t{number}" for number in range(24)]
    together = threading.Barrier(8)  # a file is locked against other threads as against other processes

    def add(name: str) -> int:
        together.wait(60)
        return main(["keys", "add", name, "--file", file])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(add, names)) == [0] * len(names)
    assert {record.name for record in read_keys(Path(file))} == set(names)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_the_file_to_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert main(["keys", "add", "acme", "--file", str(file)]) == 0
    os.chown(file, 1234, 1234)
    assert main(["keys", "add", "bolt", "--file", str(file)]) == 0
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (1234, 0o600)


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "--help"])
    told = capsys.readouterr().out
    for word in ("add", "list", "revoke", "[keys]", "shown once"):
        assert word in told
