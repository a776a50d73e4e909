"""The plugin bench: ratios of neighbours, an interval that holds the median as often as it says, sizes that fit."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from infra.bench import plugin, policy_cost
from infra.bench.plugin import (
    FREE,
    WAVE,
    Pace,
    Setting,
    advance,
    begin,
    median_interval,
    stretched,
    table,
    tax_of,
    waves,
)
from orchestrator.tests.metered import MeteredEngine
from policies.budget import Protection
from workers.api import EngineSpec
from workers.vllm_engine.tests.cases import Arm

SIZES: dict[str, Any] = {
    "dtype": "bfloat16", "keep": 264, "interval": 16, "batch": 4, "pairs": 10, "repeats": 5, "steps": 96,
    "tokens": 4000, "places": 4, "queue": 16,
}  # fmt: skip
SETTING = Setting("m", **SIZES)


def test_the_interval_of_a_median_is_of_order_statistics() -> None:
    # binomial(10, 1/2): P(X <= 1) = 11/1024, so that [2nd, 9th] holds the median with 97.9 %
    assert median_interval(list(range(10))) == (1, 8)
    assert median_interval(list(range(6))) == (0, 5)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval(list(range(20))) == (5, 14)


def test_ratios_are_of_neighbours_and_rows_begin_with_the_best() -> None:
    slow, fast = Pace(100, 2.0), Pace(100, 1.0, preemptions=3)
    found = {"worse": [(slow, fast)] * 3, "even": [(slow, slow), (fast, fast), (slow, slow)]}
    lines = table(found, tax_of, "tax")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| even", "| worse"]
    assert lines[2] == "| even | 0.000 | 0.000 to 0.000 | 3 | 50 | 50 | 3 |"
    assert lines[3] == "| worse | 0.500 | 0.500 to 0.500 | 3 | 50 | 100 | 3 |"
    assert statistics.median(tax_of(*pair) for pair in found["worse"]) == 0.5


def test_free_policies_generate_the_whole_output_in_their_pairs() -> None:
    assert all(SETTING.plan(name) == (10, 400) for name in FREE)
    assert SETTING.plan("snapkv") == (5, 96)
    evicting = SETTING.long(Arm("random"), 4000)
    assert all(len(request.prompt_token_ids) + request.sampling.max_tokens <= SETTING.window for request in evicting)
    assert {request.eviction.protection for request in evicting if request.eviction} == {Protection.PROMPT}
    # events of different requests fall on different steps
    assert len({len(request.prompt_token_ids) for request in evicting}) == 4


def test_stock_vllm_is_timed_while_it_decodes_and_never_beyond_keep() -> None:
    spec = SETTING.spec([], 4, 40)
    assert (spec.keep_ceiling, spec.interval, spec.needs) == (0, 0, ())
    requests = SETTING.short()
    assert max(len(request.prompt_token_ids) for request in requests) + WAVE == SETTING.keep
    engine: Any = Lockstep(spec)
    engine.start()
    pace = waves(engine, requests, 100)
    assert pace.tokens == 2 * 4 * (WAVE - 2)
    begin(engine, requests, 5)
    assert engine.counters().running == 4
    assert advance(engine, 3).tokens == 12


class Lockstep(MeteredEngine):
    """`begin` replaces what runs, as VllmEngine names it."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)

    @property
    def _open(self) -> list[str]:
        return [run.request.request_id for run in (*self._running, *self._waiting)]


class Here:
    """As Held, in this process."""

    def __init__(self, spec: EngineSpec) -> None:
        self._engine: Any = Lockstep(spec)
        self._engine.start()

    def call(self, work: Any, *given: Any) -> Any:
        return work(self._engine, *given)

    def close(self) -> None:
        self._engine.close()


@pytest.mark.parametrize(("limit", "status"), [(1e9, 0), (-1e9, 1)])
def test_a_run_from_end_to_end(
    limit: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(plugin, "Held", Here)
    monkeypatch.setattr(plugin, "LIMIT", limit)
    monkeypatch.setattr(policy_cost, "PAGE", tmp_path / "benchmarks.md")
    sizes = "--pairs 3 --repeats 2 --steps 8 --tokens 60 --batch 4 --queue 3 --places 2 --keep 128 --write"
    arms = "--policies snapkv random --gain random"
    monkeypatch.setattr("sys.argv", ["plugin", *arms.split(), *sizes.split()])
    assert plugin.main() == status
    shown, page = capsys.readouterr().out, (tmp_path / "benchmarks.md").read_text()
    assert [line.split(":")[1].strip() for line in shown.splitlines() if line.startswith("tax:")] == [
        "random 1/3", "random 2/3", "random 3/3", "snapkv 1/2", "snapkv 2/2",
    ]  # fmt: skip
    assert "speed / full: random 2/2" in shown
    assert page.count("| policy |") == 2
    assert all(f"\n| {name} | " in page for name in ("random", "snapkv"))
    assert "3 requests of 96 + 60 tokens in a pool that holds 2 of them whole" in page
    assert page.rstrip().endswith(plugin.MARKS[1])


def test_a_longer_window_changes_nothing_else(tmp_path: Path) -> None:
    model = Path(stretched(tmp_path, 9000))
    config = json.loads((model / "config.json").read_text())
    assert config["max_position_embeddings"] == 9000
    assert config["num_hidden_layers"] == 4
    assert (model / "model.safetensors").exists()
