"""What a user sees of a running campaign."""

from __future__ import annotations

import io
import re

from rich.console import Console

from orchestrator.progress import EngineLine, LiveView, PlainView, Rate, Snapshot, duration, headline, view_for

LOADING = EngineLine("e1", "reasoner (keep <= 264, interval 16)", "loading model", 0, 0)
RUNNING = EngineLine("e1", "reasoner (keep <= 264, interval 16)", "running", 64, 6)
SNAPSHOT = Snapshot(120, 1520, 6912.4, 72.3, (RUNNING,), 1, 8, 0, False)


def test_headline_names_what_matters_and_nothing_that_is_zero() -> None:
    assert headline(SNAPSHOT) == "120/1,520 rows, 6,912 tokens/s, 0:01:12 left, 1 failed attempt, 8 rows parked"


def test_plain_lines_come_with_each_change_of_state_and_not_with_each_turn() -> None:
    out = io.StringIO()
    view = view_for(Console(file=out, width=200))
    assert isinstance(view, PlainView)
    with view:
        for engine in (LOADING, LOADING, RUNNING, RUNNING):
            view.show(Snapshot(0, 8, 0.0, None, (engine,), 0, 0, 0, False))
    lines = out.getvalue().splitlines()
    assert [line.rsplit(": ", 1)[1] for line in lines] == ["loading model", "running"]
    assert lines[0].startswith("0/8 rows, 0 tokens/s | e1 reasoner")


def test_a_terminal_gets_a_panel_that_leaves_only_what_was_said() -> None:
    out = io.StringIO()
    view = view_for(Console(file=out, force_terminal=True, width=120))
    assert isinstance(view, LiveView)
    with view:
        view.show(SNAPSHOT)
        view.say("2 chunks will be tried again: killed")
    assert "\n120/1,520 rows" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", out.getvalue())
    assert "2 chunks will be tried again: killed" in out.getvalue()


def test_rate_counts_new_tokens_of_the_last_seconds_only() -> None:
    rate = Rate()
    for second in range(11):
        rate.add("a", 100 * second, float(second))
        rate.add("b", 50 * second, float(second))
    assert rate.value(10.0) == 1500 / 9
    assert rate.value(100.0) == 0.0
    rate.add("a", 40, 101.0)
    assert rate.total == 1500


def test_duration() -> None:
    assert [duration(s) for s in (0.4, 61, 7322)] == ["0:00:00", "0:01:01", "2:02:02"]
