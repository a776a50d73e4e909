"""The policy bench: bytes and FLOPs counted by hand, extrapolated numbers apart, the page's part replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.bench import policy_cost
from infra.bench.policy_cost import DIM, HEADS, INTERVAL, PROMPT, QUERY_HEADS, Caches, Roof, Row, Setting
from policies import registry

KEEP = PROMPT + INTERVAL + 32


@pytest.fixture(scope="module")
def caches() -> Caches:
    return Caches(KEEP, layers=2, requests=1, device="cpu")


def counted(name: str, caches: Caches, layers: int) -> tuple[int, int]:
    return policy_cost.counted(policy_cost.call_of(registry.build(name, {}), caches, layers, 1))


def test_random_reads_nothing_and_moves_an_intervals_rows_at_most(caches: Caches) -> None:
    moved, flops = counted("random", caches, 2)
    row = 2 * DIM * 2 * 2  # key and value, bf16, read and written
    assert flops == 0
    assert moved % row == 0
    assert 0 < moved // row <= 2 * HEADS * INTERVAL


def test_snapkv_multiplies_every_query_with_every_candidate(caches: Caches) -> None:
    moved, flops = counted("snapkv", caches, 1)
    assert flops == 2 * QUERY_HEADS * 64 * KEEP * DIM
    keys = HEADS * (KEEP + INTERVAL) * DIM * 2
    assert moved > keys
    assert counted("snapkv", caches, 2)[1] == 2 * flops


def test_every_evicting_policy_is_measured_and_random_comes_first() -> None:
    names = [policy.name for policy in policy_cost.policies_here()]
    assert names[0] == "random"
    left = [name for name in registry.names() if name not in names]
    assert all(policy_cost.required(name) or not registry.get(name).evicts for name in left)
    assert {"snapkv", "triattention", "random_inplace"} < set(names)


def test_extrapolated_numbers_have_columns_of_their_own() -> None:
    rows = [
        Row("random", Setting(1024, 36, 1), (0.1, 0.2, 0.3), moved=10**9, flops=0),
        Row("snapkv", Setting(1024, 12, 1), (0.1, 0.1, 0.1), moved=10**6, flops=10**9),
    ]
    head, _, random, snapkv = policy_cost.table(rows, Roof(bandwidth=10e9, flops=20e9))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, random, snapkv)]
    named = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    assert named[0]["extrapolated: ms at 36 x 1"] == "measured"
    assert named[0]["extrapolated: ms at 36 x 32"] == "6,400"
    assert named[1]["extrapolated: ms at 36 x 1"] == "300"
    assert named[1]["times random (range over rounds)"] == "1.50 (1.00-3.00)"
    assert (named[0]["share of roof"], named[1]["share of roof"]) == ("50.0%", "50.0%")


def test_the_page_keeps_everything_outside_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\nabove\n")
    monkeypatch.setattr(policy_cost, "PAGE", page)
    policy_cost.write(["first"])
    page.write_text(page.read_text() + "\nbelow\n")
    policy_cost.write(["second"])
    text = page.read_text()
    assert "above" in text
    assert "below" in text
    assert "second" in text
    assert "first" not in text
