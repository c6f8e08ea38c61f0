"""Which dialect is made, and which address looks like which."""

from __future__ import annotations

import pytest

from voxlane_lab.dialects.choice import DIALECTS, guess_dialect, make_dialect
from voxlane_lab.errors import LabError

from .faces import options


@pytest.mark.parametrize("name", DIALECTS)
def test_each_dialect_can_be_made(name: str) -> None:
    assert make_dialect(name, options()).name == name


def test_only_native_pauses() -> None:
    assert [name for name in DIALECTS if make_dialect(name, options()).pauses] == ["native"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("ws://127.0.0.1:8000/v1/voice", "native"),
        ("wss://api.openai.com/v1/realtime?model=x", "realtime"),
        ("https://me.openai.azure.com/openai/v1/realtime", "realtime"),
        ("wss://a.example/v1/phone", "twilio"),
        ("wss://a.example/media-stream", "twilio"),
        ("ws://127.0.0.1:8765/pcm", "pcm"),
        ("ws://127.0.0.1:9/ws", None),
        ("nonsense", None),
    ],
)
def test_addresses(url: str, name: str | None) -> None:
    assert guess_dialect(url) == name


def test_http_is_taken_for_ws() -> None:
    assert (
        make_dialect("native", options(url="https://a.example/v1/voice")).handshake().url == "wss://a.example/v1/voice"
    )


@pytest.mark.parametrize(
    "url", ["", "a.example", "ftp://a.example", "ws://", "ws://a:b:c/", "ws://[::1", "ws://a:99999"]
)
def test_a_wrong_address_is_one_clear_line(url: str) -> None:
    with pytest.raises(LabError, match="the address must be that of a WebSocket"):
        make_dialect("native", options(url=url))


def test_a_wrong_name_is_one_clear_line() -> None:
    with pytest.raises(LabError, match="there is no dialect sip; there are native, realtime, twilio, pcm"):
        make_dialect("sip", options())
