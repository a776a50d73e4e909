"""`evictbench dashboard`: mistakes are one paragraph before anything starts; Streamlit gets loopback and the store."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard import command
from orchestrator.errors import UserError
from orchestrator.store.tests.stores import Arm, build_store


def refusal(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(command.command, arguments, catch_exceptions=False)
    return str(caught.value)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Arguments with which this process would have been replaced."""
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: calls.append(arguments))
    return calls


def test_a_missing_store_is_named_with_the_next_step(tmp_path: Path) -> None:
    text = refusal(str(tmp_path / "nowhere"))
    assert "nowhere" in text
    assert "evictbench run" in text


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    assert "no store.json" in refusal(str(tmp_path))


def test_a_store_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(json.dumps({"schema_version": 999, "block": 8}))
    assert "schema version 999" in refusal(str(tmp_path))


def test_a_taken_port_is_refused_by_number(tmp_path: Path) -> None:
    store = build_store(tmp_path / "store", [Arm("full", "1" * 8)]).paths.root
    with socket.socket() as other:
        other.bind((command.LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port}" in refusal(str(store), "--port", str(port))


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    store = build_store(tmp_path / "store", [Arm("full", "1" * 8)]).paths.root
    assert "192.0.2.1" in refusal(str(store), "--host", "192.0.2.1")


def test_the_next_free_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind((command.LOOPBACK, 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(command, "FIRST_PORT", taken)
        assert taken < command.free_port(command.LOOPBACK, None) < taken + command.PORTS_TRIED


def test_streamlit_starts_on_loopback_with_the_store(tmp_path: Path, started: list[list[str]]) -> None:
    store = build_store(tmp_path / "store", [Arm("full", "1" * 8)]).paths.root
    result = CliRunner().invoke(command.command, [str(store)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "http://127.0.0.1:" in result.output
    (arguments,) = started
    assert arguments[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert "--server.address=127.0.0.1" in arguments
    assert "--browser.gatherUsageStats=false" in arguments
    assert arguments[arguments.index("--") + 1 :] == [str(store.resolve())]
    assert Path(arguments[4]).is_file()


def test_hiding_texts_reaches_the_app(tmp_path: Path, started: list[Any]) -> None:
    store = build_store(tmp_path / "store", [Arm("full", "1" * 8)]).paths.root
    CliRunner().invoke(command.command, [str(store), "--hide-texts"], catch_exceptions=False)
    assert started[0][-1] == "--hide-texts"
