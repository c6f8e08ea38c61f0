"""`voxlane-lab` as its user sees it: one clear line for every mistake, and the exit codes 0, 1 and 2."""

from __future__ import annotations

import asyncio
import io
import socket
from pathlib import Path
from typing import Literal

import pytest

from voxlane_lab import results
from voxlane_lab.cli import main
from voxlane_lab.commands import ProgressLine
from voxlane_lab.results import RunResult

MET, NOT_MEASURABLE, INTERRUPTED = 0, 2, 130
COUGH = 'name = "cough"\nrepeat = 1\nanswer_s = 1\n[[step]]\nsound = "cough"\nmeans = "nothing"\n'
KNOCK = COUGH.replace("cough", "knock")
GATE = "[gates]\nlate_ms.max = 20\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that commands are tried on; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cough.toml").write_text(COUGH + GATE)
    (tmp_path / "gate.toml").write_text(COUGH + "[gates]\nyeild_ms.p95 = 5\n")
    (tmp_path / "same.toml").write_text(KNOCK.replace('name = "knock"', 'name = "cough"'))
    (tmp_path / "text").write_text("no sound")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    (tmp_path / "mapping.toml").write_text("[send]\nrate = 5\n")
    (tmp_path / "empty.json").write_bytes(results.encode(RunResult(scenarios=[])))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run nosuch --url planted:none", "there is no scenario nosuch"),
        ("run gate.toml --url planted:none", "there is no metric yeild_ms"),
        ("run cough.toml same.toml --url planted:none", "two scenarios have the name cough"),
        ("run cough.toml --url planted:nobody", "there is no planted agent"),
        ("run cough.toml --url nowhere", "the address must be that of a WebSocket"),
        ("run cough.toml --url ws://127.0.0.1:1/ws", "which protocol does the server speak?"),
        ("run cough.toml --url ws://127.0.0.1:1/pcm --mapping mapping.toml", "rate must be a multiple of 50"),
        ("run cough.toml --url ws://127.0.0.1:1/pcm --mapping nosuch.toml", "nosuch.toml: No such file"),
        ("run cough.toml --url planted:none --out text", "cannot write into text"),
        ("score text", "text: the audio is not a WAV file"),
        ("score nosuch.wav", "nosuch.wav: No such file"),
        ("compare empty.json broken", "broken/result.json: not JSON"),
        ("replay broken", "result.json: not JSON"),
        ("report nosuch", "nosuch has no result.json"),
        ("sounds nosuch", "there is no scenario nosuch"),
        ("sounds --write nosuch/cough.wav cough", "nosuch/cough.wav: No such file"),
        ("sounds --write cough.wav couhg", "there is no sound couhg"),
        ("agent --fault nosuch", "there is no fault nosuch"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_mistake_is_one_clear_line(capsys: pytest.CaptureFixture[str], command: str, says: str) -> None:
    assert main([*command.split()]) == NOT_MEASURABLE
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("voxlane-lab: ")
    assert says in line


@pytest.mark.parametrize("option", ["--repeat 0", "--seed -1", "--dialect morse"])
@pytest.mark.usefixtures("folder")
def test_a_wrong_option_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "cough.toml", "--url", "planted:none", *option.split()])
    assert ended.value.code == NOT_MEASURABLE
    assert option.split()[0] in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["agent", "--port", str(port)]) == NOT_MEASURABLE
    assert capsys.readouterr().err == f"voxlane-lab: cannot listen on port {port}: Address already in use\n"


def test_a_server_that_cannot_be_reached_is_not_measurable(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxlane_lab.holding.STARTS_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    assert main(["run", "cough.toml", "--url", f"ws://127.0.0.1:{port}/pcm", "--out", "out"]) == NOT_MEASURABLE
    said = f"not measurable: cough, call 1: ws://127.0.0.1:{port}/pcm cannot be reached: does the server run?"
    assert said in capsys.readouterr().out.splitlines()
    assert (folder / "out" / "report.html").is_file()


def test_a_run_and_what_can_be_done_with_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "cough.toml", "--url", "planted:none", "--out", "out"]) == MET
    told = capsys.readouterr()
    assert "cough: 1 call, 1 steps" in told.out
    assert "the only gate is met" in told.out
    assert told.err == "cough: call 1 of 1\n"
    assert main(["replay", "out", "--json"]) == MET
    assert capsys.readouterr().out == (folder / "out" / "result.json").read_text()
    assert main(["report", "out"]) == MET
    assert main(["compare", "out", "out"]) == NOT_MEASURABLE
    assert "too few calls" in capsys.readouterr().out


def test_a_run_against_two_servers_reports_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "cough.toml", "--repeat", "2", "--out", "both", "--url", "planted:none", "--against"]
    assert main([*asked, "planted:none"]) == NOT_MEASURABLE  # a cough into silence has nothing to compare
    told = capsys.readouterr()
    assert "first server, planted:none:" in told.out
    assert told.out.count("the only gate is met") == 2
    assert [line.partition(" ")[0] for line in told.err.splitlines()] == ["first", "second", "second", "first"]
    for name in ("first", "second"):
        assert (folder / "both" / name / "report.html").is_file()


def test_a_second_server_that_cannot_be_reached_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voxlane_lab.holding.STARTS_S", 0.0)
    asked = ["run", "cough.toml", "--repeat", "3", "--out", "both", "--dialect", "pcm"]
    assert main([*asked, "--url", "planted:none", "--against", "ws://127.0.0.1:9/pcm"]) == NOT_MEASURABLE
    assert "ws://127.0.0.1:9/pcm cannot be reached" in capsys.readouterr().out


def test_the_agent_prints_each_address_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(asyncio.Event):
        async def wait(self) -> Literal[True]:
            raise KeyboardInterrupt

    monkeypatch.setattr("voxlane_lab.commands.asyncio.Event", Stop)
    assert main(["agent", "--port", "0"]) == INTERRUPTED
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(name, url.rpartition(":")[2].partition("/")[2]) for name, url in lines] == [
        ("native", "v1/voice"),
        ("realtime", "v1/realtime"),
        ("twilio", "twilio"),
        ("pcm", "pcm"),
    ]


class Terminal(io.StringIO):
    """A terminal, which writes over a line after a carriage return."""

    def isatty(self) -> bool:
        return True

    @property
    def seen(self) -> list[str]:
        """What the line said, one text after the other."""
        return [text.rstrip() for text in self.getvalue().split("\r")]


def test_the_progress_line_is_one_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    with ProgressLine() as line:
        line.tell("mhm: call 1 of 12, step 1 of 2, 3 s")
        line.clips(3, 14)
    assert terminal.seen == ["", "mhm: call 1 of 12, step 1 of 2, 3 s", "making speech: 3 of 14 clips", "", ""]
    assert max(map(len, terminal.getvalue().split("\r"))) < 40


def test_without_a_terminal_only_what_is_new_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as line:
        for second in range(3):
            line.tell(f"mhm: call 1 of 12, step 1 of 2, {second} s")
        line.tell("mhm: call 2 of 12")
        line.tell("mhm: call 1 of 12, step 2 of 2, 4 s")  # calls that are held at once
    assert capsys.readouterr().err == "mhm: call 1 of 12\nmhm: call 2 of 12\n"
