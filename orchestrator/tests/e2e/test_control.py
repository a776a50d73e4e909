"""Asking a running campaign to pause, go on, cancel and retry, as a second terminal does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.tests.e2e.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, limit=48)


def ask(site: Site, command: str, *options: str) -> tuple[int, str]:
    process = site.spawn([sys.executable, "-m", "orchestrator", command, str(site.job), *options])
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def driver(site: Site) -> dict[str, object]:
    found = [json.loads(path.read_text()) for path in site.store.glob("campaigns/*/drivers/*.json")]
    return found[0] if found else {}


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    return output


def test_pause_frees_the_engine_commits_what_had_started_and_resume_goes_on(site: Site) -> None:
    process = site.start("--backend", "local")
    site.until(lambda: site.engines() and site.chunks(), process)
    status, said = ask(site, "pause")
    assert status == 0, said
    assert f"(pid {process.pid})" in said
    site.until(lambda: driver(site)["state"] == "paused" and not site.engines(), process)
    committed = len(site.chunks())
    assert committed < 18, "the job ended before the pause"
    assert "paused" in ask(site, "status")[1]
    time.sleep(1)
    assert len(site.chunks()) == committed
    assert ask(site, "resume")[0] == 0
    output = finish(process)
    assert process.returncode == 0, output
    assert "paused: finishing what has started" in output
    site.check_complete()
    assert site.attempts() == []


def test_cancel_drains_and_leaves_the_rest_to_the_next_run(site: Site) -> None:
    process = site.start("--backend", "local")
    site.until(lambda: site.engines() and site.chunks(), process)
    assert ask(site, "cancel")[0] == 0
    output = finish(process)
    assert process.returncode == 130, output
    assert "Stopped (cancelled)" in output
    assert 0 < len(site.chunks()) < 18
    assert driver(site) == {}
    assert site.run("--backend", "local")[0] == 0
    site.check_complete()


def test_asking_a_campaign_that_nobody_drives_is_refused(site: Site) -> None:
    status, output = ask(site, "pause", "--store", str(site.root))
    assert status == 2
    assert "no campaign 'faults'" in output or "is no store" in output
    site.limit = 8
    assert site.run("--backend", "local")[0] == 0
    for command in ("pause", "resume", "cancel", "retry"):
        status, output = ask(site, command)
        assert status == 2
        assert "no driver of campaign 'faults' is alive" in output


def test_logs_show_what_engines_printed_and_refuse_unknown_ones(site: Site) -> None:
    site.limit = 8
    assert site.run("--backend", "local")[0] == 0
    status, output = ask(site, "logs")
    assert status == 0
    engine = output.split("== ")[1].split()[0]
    assert ask(site, "logs", "--engine", engine)[0] == 0
    status, output = ask(site, "logs", "--engine", engine + "x")
    assert status == 2
    assert f"Did you mean '{engine}'?" in output
