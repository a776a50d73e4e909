"""YAML reading: places of values, and the mistakes that YAML itself would swallow."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.yaml_source import key_path, parse, read

FILE = Path("x.yaml")


def test_lines_name_every_key_path_and_fall_back_to_the_parent() -> None:
    source = parse(FILE, "name: a\narms:\n  keep: [1,\n    2]\n  policies:\n    - full\n    - {name: random}\n")
    assert source.line(("arms", "keep")) == 3
    assert source.line(("arms", "keep", 1)) == 4
    assert source.line(("arms", "policies", 1, "name")) == 7
    assert source.line(("arms", "policies", 1, "keep")) == 7
    assert source.line(("missing",)) == 1
    assert source.place(("arms", "keep", 0)) == "x.yaml:3: arms.keep[0]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("off", "off"),
        ("none", "none"),
        ("~", None),
        ("true", True),
        ("1e-3", 0.001),
        ("1_000", 1000),
        ("0.6", 0.6),
        ("-2", -2),
        ("007", "007"),
        ("26-32", "26-32"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("0x10", "0x10"),
        ("1.", 1.0),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    found = parse(FILE, f"key: {text}\n").data["key"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: the file is empty. Start from jobs/template.yaml, which explains every key."),
        (
            "name: a\narms: {keep: 1,\n  keep: 2}\nname: b\n",
            "x.yaml:3: arms.keep: key written twice, first on line 2. Remove one of them.\n"
            "x.yaml:4: name: key written twice, first on line 1. Remove one of them.",
        ),
        ("1: a\n", "x.yaml:1: the file: key 1 is not text. Quote it, or mend the indentation."),
        (
            "name: [a\nkeep: 3\n",
            "x.yaml:2: not valid YAML: expected ',' or ']', but got ':'. Check quotes, brackets and indentation.",
        ),
        ("a: &a [*a]\n", "x.yaml:1: a[0]: an alias must not contain itself."),
        (
            "a: 1\n---\nb: 2\n",
            "x.yaml:2: not valid YAML: but found another document. Check quotes, brackets and indentation.",
        ),
        (
            "a: !!python/object:os.system {}\n",
            "x.yaml:1: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'. Check quotes, brackets and indentation.",
        ),
    ],
)
def test_what_is_not_one_plain_document_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(FILE, text)
    assert str(caught.value) == message


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("name: a\n")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(UserError, match=r"no such file. Did you mean '.*/demo.yaml'\? Name a job file"):
        read(tmp_path / "demmo.yaml")
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)
    with pytest.raises(UserError, match=r"not UTF-8 text \(byte 6\)"):
        read(tmp_path / "latin.yaml")


def test_key_paths_read_as_in_a_program() -> None:
    assert key_path(("arms", "policies", 2, "params", "window")) == "arms.policies[2].params.window"
