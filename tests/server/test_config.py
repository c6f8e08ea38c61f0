"""One TOML into one frozen tree: what is accepted, and how each mistake is named."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.server import config as configuration
from voxlane.server.config import DERIVED, Config, keys
from voxlane.server.errors import ConfigError
from voxlane.server.validation import description_of


def leaves() -> list[tuple[str, object]]:
    return [
        (f"{section.name}.{item.name}", typing.get_type_hints(type(part))[item.name])
        for section in dataclasses.fields(Config)
        for part in [getattr(Config(), section.name)]
        for item in dataclasses.fields(part)
        if f"{section.name}.{item.name}" not in DERIVED
    ]


def bounds(key: str) -> tuple[float, float]:
    section, name = key.split(".")
    number: Any = keys()[section][name].type
    return number.type.ge, number.type.le


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "voxlane.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_everything_is_default() -> None:
    assert configuration.load() == Config()


def test_values_arrive(tmp_path: Path) -> None:
    path = write(tmp_path, '[server]\nport = 9\n[engine]\npolicy = "fcfs"\nstep_budget_ms = 40\nprefix_cache = false\n')
    config = configuration.load(path)
    assert config.server.port == 9
    assert config.engine.policy == "fcfs"
    assert config.engine.step_budget_ms == 40.0
    assert type(config.engine.step_budget_ms) is float
    assert not config.engine.prefix_cache


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nprot = 1", r"unknown key server\.prot \(did you mean port\?\)"),
        ("[sever]\n", r"unknown key sever \(did you mean server\?\)"),
        ("[server]\nzzzzzz = 1", r"known: host, port"),
        ("[engine]\nport = 80", r"unknown key engine\.port \(did you mean server\.port\?\)"),
        ('[limits]\nmodle = "x"', r"unknown key limits\.modle \(did you mean engine\.model\?\)"),
        ("kv_memory = 80", r"unknown key kv_memory \(did you mean engine\.kv_memory_mib\?\)"),
        ("[limits]\naudio_held_bytes = 1", r"must be a whole number from 1048576 to 1099511627776, not 1"),
        ("server = 3", r"server must be a table"),
        ('[server]\nport = "80"', r"server\.port must be a whole number from 0 to 65535, not 80"),
        ("[server]\nport = 80.0", r"server\.port must be a whole number"),
        ("[server]\nport = true", r"server\.port must be a whole number from 0 to 65535, not True"),
        ("[server]\nport = 65536", r"server\.port must be a whole number from 0 to 65535, not 65536"),
        ("[server]\ndrain_s = nan", r"server\.drain_s must be a number from 0 to 3600, not nan"),
        ("[server]\ndrain_s = inf", r"server\.drain_s must be a number from 0 to 3600, not inf"),
        ("[engine]\nprefix_cache = 1", r"engine\.prefix_cache must be true or false"),
        ('[engine]\npolicy = "lifo"', r"engine\.policy must be one of deadline, fcfs, priority, not lifo"),
        ("[engine]\npolicy = []", r"engine\.policy must be one of"),
        (
            '[server]\nhighest_priority = "urgent"',
            r"server\.highest_priority must be one of critical, high, normal, not urgent",
        ),
        ('[engine]\nmodel = ""\nasr_model = ""\ntts_model = ""', r"are all empty: nothing to serve"),
        ('[engine]\nasr_model = ""\nspeech_model = "a"', r"engine\.speech_model needs engine\.asr_model"),
        (
            '[engine]\nspeech_model = "a"\n[phone]\nhang_up = true',
            r"phone\.hang_up is given, and engine\.speech_model calls no tools",
        ),
        (
            '[engine]\nspeech_model = "a"\n[phone]\ntransfer = ["sales = +4930123456"]',
            r"phone\.transfer is given, and engine\.speech_model calls no tools",
        ),
        (
            '[engine]\nspeech_model = "a"\ntts_model = ""\n[voice]\npronunciations = ["Nguyen = win"]',
            r"voice\.pronunciations needs engine\.tts_model: engine\.speech_model chooses itself",
        ),
        ('[engine]\nspeech_model = "a"\n[phone]\nvoice = "b"', r"phone\.voice must be empty: engine\.speech_model"),
        ('[engine]\nadapter = "a"', r"engine\.adapter is given: engine\.model must name the model"),
        ('[engine]\nmodel = ""\nadapter = "a"', r"engine\.adapter is given: engine\.model must name the model"),
        ('[server]\nhost = ""', r"server\.host must be a string of 1 to 255 characters"),
        ('[server]\nhost = "a\\nb"', r"server\.host must be printable"),
        ("[engine\n", r"not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        configuration.load(write(tmp_path, text))
    assert caught.value.hint.startswith(str(tmp_path / "voxlane.toml"))
    assert "\n" not in caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        configuration.load(tmp_path / "none.toml")
    (tmp_path / "latin").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        configuration.load(tmp_path / "latin")


def test_overrides_are_checked_too() -> None:
    assert configuration.load(None, {"engine.model": "x"}).engine.model == "x"
    with pytest.raises(ConfigError, match=r"command line: server\.port must be a whole number from"):
        configuration.load(None, {"server.port": -1})


def test_lists_and_the_other_chat_server() -> None:
    config = configuration.load(None, {"voice.origins": ["https://a.example"], "chat.model": "m", "engine.model": ""})
    assert config.voice.origins == ("https://a.example",)
    for wrong, says in (("https://a.example", "a list of strings"), ([1], "a list of strings"), (["\n"], "printable")):
        with pytest.raises(ConfigError, match=rf"command line: voice\.origins must be {says}"):
            configuration.load(None, {"voice.origins": wrong})
    assert configuration.load(None, {"chat.model": "m", "chat.url": "http://a"}).chat.url == "http://a"
    for parts in ({"chat.url": "http://a"}, {"chat.url": "a", "chat.model": "m"}):
        with pytest.raises(ConfigError, match=r"chat\.url must begin"):
            configuration.load(None, parts)


def test_the_engine_is_told_whether_mirrors_may_be_used(tmp_path: Path) -> None:
    assert configuration.load().engine.mirrors
    config = configuration.load(write(tmp_path, "[weights]\nmirrors = false\n"))
    assert (config.weights.mirrors, config.engine.mirrors) == (False, False)
    assert "mirrors = false  # default: true" in configuration.render(config)
    assert configuration.render(config).count("mirrors") == 1
    with pytest.raises(ConfigError, match=r"unknown key engine\.mirrors \(did you mean weights\.mirrors\?\)"):
        configuration.load(write(tmp_path, "[engine]\nmirrors = false\n"))
    with pytest.raises(ConfigError, match=r"weights\.mirrors must be true or false"):
        configuration.load(write(tmp_path, '[weights]\nmirrors = "no"\n'))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ('["Siobhan"]', "entry 1: write it as 'Siobhan = shiv-awn' or"),
        ('["Siobhan = /ʃɪˈvɔːn"]', "entry 1: phonemes stand between two slashes"),
        ('["Siobhan = sh1v"]', "entry 1: a respelling has letters"),
        ('["A = ay", "a = ah"]', "entry 2: the same name as in entry 1"),
    ],
)
def test_a_pronunciation_that_cannot_be_used_is_refused(tmp_path: Path, entries: str, reason: str) -> None:
    path = write(tmp_path, f"[voice]\npronunciations = {entries}\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}: voice.pronunciations: {reason}")):
        configuration.load(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('public_url = "example.org"', r"phone\.public_url must be an address as https://example\.org"),
        ('public_url = "wss://example.org"', r"phone\.public_url must be an address"),
        ('public_url = "https://example.org?a=b"', r"phone\.public_url must be an address"),
        ('public_url = "https://me:pw@example.org"', r"phone\.public_url must be an address"),
        ('public_url = "https://example.org:99999"', r"phone\.public_url must be an address"),
        ('public_url = "https://["', r"phone\.public_url must be an address"),
        ('sources = ["example.org"]', r"phone\.sources must be addresses and networks"),
        ('sources = ["10.0.0.0/33"]', r"phone\.sources must be addresses and networks"),
        ('audiosocket = "127.0.0.1"', r"phone\.audiosocket must be an address and a port"),
        ('audiosocket = ":19092"', r"phone\.audiosocket must be an address and a port"),
        ('audiosocket = "127.0.0.1:99999"', r"phone\.audiosocket must be an address and a port"),
        ('audiosocket = "a:1/b:2"', r"phone\.audiosocket must be an address and a port"),
        ('audiosocket = "0.0.0.0:19092"', r"phone\.sources must be given with it"),
        ('audiosocket = "pbx.example:19092"', r"phone\.sources must be given with it"),
        ('transfer = ["+4930123456"]', r'phone\.transfer: "?\+4930123456"?: write it as "sales = \+4930123456"'),
        ('transfer = ["sales = example"]', r"phone\.transfer: sales: write it as"),
        ('transfer = ["sales = sip:a b@example.org"]', r"phone\.transfer: sales: write it as"),
        ('transfer = ["a = +4930123456", "a=sip:a@b"]', r"phone\.transfer has two destinations called a"),
        ('tools = "tools.json"', r"phone\.tools and phone\.tools_url must be given together"),
        ('tools_url = "https://a"', r"phone\.tools and phone\.tools_url must be given together"),
        ('tools = "tools.json"\ntools_url = "ftp://a"', r"phone\.tools_url must be an address that begins with http"),
        ("call_s = 0", r"phone\.call_s must be a number from 1 to 86400, not 0"),
        ('digits_end = "1"', r"phone\.digits_end must be one of #, \*, none, not 1"),
    ],
)
def test_a_mistake_about_telephones_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        configuration.load(write(tmp_path, f"[phone]\n{text}\n"))
    assert caught.value.hint.startswith(str(tmp_path / "voxlane.toml"))


def test_what_can_be_said_about_telephones(tmp_path: Path) -> None:
    text = """[phone]
    public_url = "https://example.org/voice"
    sources = ["203.0.113.7", "10.1.2.3/8", "2001:db8::/32"]
    audiosocket = "0.0.0.0:19092"
    transfer = ["sales = +4930123456", "Night desk = sip:night@example.org;transport=tls"]
    tools = "tools.json"
    tools_url = "http://127.0.0.1:9000/tools"
    """
    phone = configuration.load(write(tmp_path, text)).phone
    assert list(map(str, configuration.phone_networks(phone.sources))) == [
        "203.0.113.7/32",
        "10.0.0.0/8",
        "2001:db8::/32",
    ]
    assert configuration.socket_address(phone.audiosocket, "") == ("0.0.0.0", 19092)
    assert configuration.transfer_targets(phone.transfer) == {
        "sales": "+4930123456",
        "Night desk": "sip:night@example.org;transport=tls",
    }


def test_every_number_has_a_range_that_holds_its_default() -> None:
    for key, hint in leaves():
        if hint in (int, float):
            least, most = bounds(key)
            section, name = key.split(".")
            assert least <= getattr(getattr(Config(), section), name) <= most


PHONE_VALUES: dict[str, st.SearchStrategy[object]] = {
    "phone.public_url": st.sampled_from(["", "https://example.org", "https://example.org:8443/voice/"]),
    "phone.sources": st.lists(st.sampled_from(["203.0.113.7", "10.0.0.0/8", "2001:db8::/32"]), unique=True),
    "phone.audiosocket": st.sampled_from(["", "127.0.0.1:19092", "localhost:1", "[::1]:19092"]),
    "phone.transfer": st.lists(st.sampled_from(["sales = +4930123456", "Night desk=sip:a@b.example"]), unique=True),
    "phone.tools": st.just(""),  # it needs the other one with it
    "phone.tools_url": st.just(""),
}
WATCHING_VALUES: dict[str, st.SearchStrategy[object]] = {
    "webhook.url": st.sampled_from(["", "https://example.org/calls?x=1", "http://[::1]:9000/"]),
    "recordings.audio": st.just(False),  # it needs a folder with it
    "recordings.transcripts": st.just(False),
}


def value_for(key: str, hint: object) -> st.SearchStrategy[object]:
    if key in WATCHING_VALUES:
        return WATCHING_VALUES[key]
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if hint is bool:
        return st.booleans()
    printable = st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" ")
    texts = st.text(printable, min_size=1, max_size=20)
    if key in ("chat.url", "engine.adapter", "engine.speech_model", "server.tls_cert", "server.tls_key"):
        return st.just("")  # they need another key with them, or without them
    if key == "server.trusted_proxies":
        return st.lists(st.sampled_from(["10.0.0.0/8", "127.0.0.1", "fd00::/8"]), unique=True)
    if key == "voice.pronunciations":
        return st.lists(st.sampled_from(["Siobhan = shiv-awn", "Niamh = /niːv/", "SQL=sequel"]), unique=True)
    if key in PHONE_VALUES:
        return PHONE_VALUES[key]
    if key == "webrtc.public_addresses":
        return st.lists(st.sampled_from(["203.0.113.7", "2001:db8::7"]), unique=True)
    if key == "webrtc.ice_servers":
        return st.lists(st.sampled_from(["stun:stun.example.org", "turn:10.0.0.1:3478"]), unique=True)
    if key == "server.agent_check":
        return st.sampled_from(["", "127.0.0.1:9100", "[::1]:9100"])
    if key == "server.gpus":
        return st.lists(st.sampled_from(["0", "1", "GPU-4d5e6f70-1234"]), max_size=16)
    if key == "server.at":
        return st.sampled_from(["", "cell1", "a.b-c_d"])
    if key == "store.url":
        return st.sampled_from(["redis://127.0.0.1:6379/0", "rediss://example.org", "unix:///run/valkey.sock"])
    if hint is str:
        return texts
    if hint == tuple[str, ...]:
        return st.lists(texts, max_size=3)
    least, most = bounds(key)
    return st.integers(math.ceil(least), math.floor(most)) if hint is int else st.floats(least, most)


@given(st.fixed_dictionaries({}, optional={key: value_for(key, hint) for key, hint in leaves()}))
def test_what_is_printed_reads_back_as_the_same(values: dict[str, object]) -> None:
    config = configuration.load(None, values)
    printed = configuration.render(config)
    parsed = tomllib.loads(printed)
    again = configuration.load(
        None, {f"{section}.{name}": value for section, part in parsed.items() for name, value in part.items()}
    )
    assert again == config


def test_what_differs_is_marked() -> None:
    printed = configuration.render(configuration.load(None, {"server.port": 9, "engine.model": 'a"b'}))
    assert "port = 9  # default: 8000" in printed
    assert 'model = "a\\"b"  # default: "auto"' in printed
    assert printed.count("default:") == 2


def test_every_key_is_explained_with_its_default_and_what_it_takes() -> None:
    meanings = {
        f"{section}.{name}": description_of(key.type) for section, part in keys().items() for name, key in part.items()
    }
    assert list(meanings) == [key for key, _ in leaves()]
    assert all(text[0].isupper() and text.endswith(".") for text in meanings.values())
    printed = configuration.render(Config(), explained=True)
    assert tomllib.loads(printed) == tomllib.loads(configuration.render(Config()))  # a file that can be used
    words = " ".join(printed.replace("\n# ", " ").split())
    for key, hint in leaves():
        name = key.partition(".")[2]
        (told,) = [
            line
            for before, line in itertools.pairwise(printed.split("\n"))
            if line.startswith(f"{name} = ") and meanings[key].endswith(before.removeprefix("# "))
        ]
        assert meanings[key] in words
        kinds = {str: "a string", bool: "true or false", int: "a whole number from", float: "a number from"}
        assert kinds.get(hint, "one of" if typing.get_origin(hint) is typing.Literal else "a list of strings") in told
    assert "# Where the server listens" in printed


def test_choices_are_listed() -> None:
    printed = configuration.render(configuration.load(None, {"engine.policy": "fcfs"}))
    assert 'highest_priority = "critical"  # one of critical, high, normal\n' in printed
    assert 'policy = "fcfs"  # default: "deadline"; one of deadline, fcfs, priority\n' in printed


@pytest.mark.parametrize("url", ["127.0.0.1:6379", "redis://:secret@127.0.0.1", ""])
def test_the_store_has_an_address_and_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url must begin with redis://.*VOXLANE_STORE_PASSWORD"):
        configuration.load(None, {"store.url": url})
