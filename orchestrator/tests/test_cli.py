"""The command line: fast help, one paragraph for user mistakes, a traceback for ours, tolerance of others' commands."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from orchestrator import cli
from orchestrator.errors import UserError

DEMO = Path(__file__).parents[2] / "jobs" / "demo.yaml"
HEAVY = ("torch", "vllm", "ray", "transformers")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@click.command()
@click.argument("what")
def fails(what: str) -> None:
    """Fail as asked."""
    raise UserError("keep 3 is wrong. Give 4.") if what == "user" else ZeroDivisionError(what)


def third_party(monkeypatch: pytest.MonkeyPatch, **commands: str) -> CliRunner:
    points = [EntryPoint(name, value, cli.GROUP) for name, value in commands.items()]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    monkeypatch.delitem(cli.main.__dict__, "_points", raising=False)
    return CliRunner()


def test_help_is_fast_and_lists_every_command_with_a_line_of_its_own() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        shown = run("--help")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0
    assert shown.returncode == 0
    assert "plan what a job would run, how long that takes and what it could resolve" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("arguments", [["--help"], ["plan", str(DEMO)]], ids=["help", "plan"])
def test_neither_help_nor_a_plan_loads_an_engine(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom orchestrator.cli import main\n"
        f"main({arguments}, standalone_mode=False)\n"
        f"sys.exit(', '.join(set({HEAVY}) & set(sys.modules)) or 0)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert (found.stderr.strip(), found.returncode) == ("", 0)
    assert found.stdout


def test_a_user_mistake_is_one_paragraph_and_exit_2() -> None:
    found = run("plan", "jobs/no-such-job.yaml")
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("jobs/no-such-job.yaml: no such file.")
    assert len(found.stderr.splitlines()) == 1


def test_an_unknown_command_names_the_closest() -> None:
    found = run("pln")
    assert found.returncode == 2
    assert found.stderr.startswith("no command 'pln'; commands: ")
    assert found.stderr.endswith("Did you mean 'plan'?\n")


def test_errors_of_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = third_party(monkeypatch, fails=f"{__name__}:fails")
    user, ours = runner.invoke(cli.main, ["fails", "user"]), runner.invoke(cli.main, ["fails", "other"])
    assert (user.exit_code, user.stderr) == (2, "keep 3 is wrong. Give 4.\n")
    assert isinstance(ours.exception, ZeroDivisionError)


def test_a_broken_third_party_command_costs_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "half_done.py").write_text('"""Half done."""\nimport no_such_thing\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = third_party(
        monkeypatch, plan="orchestrator.commands.plan:command", gone="no_such_module:command", half="half_done:command"
    )
    shown = runner.invoke(cli.main, ["--help"])
    assert shown.exit_code == 0
    assert shown.stderr.splitlines() == [
        "Warning: command 'gone' of no_such_module:command is broken: no module named 'no_such_module'"
    ]
    assert "plan" in shown.stdout
    loaded = runner.invoke(cli.main, ["half", "x"])
    assert (loaded.exit_code, len(loaded.stderr.splitlines())) == (2, 1)
    assert "No module named 'no_such_thing'" in loaded.stderr


def test_the_version_is_that_of_the_distribution() -> None:
    assert run("--version").stdout.startswith("evictbench, version ")
