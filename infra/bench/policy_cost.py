"""Cost of one event of every policy: score, select, slot map and moved rows, all policies in turn in every round.

python infra/bench/policy_cost.py [--keep 1024 2048 4096] [--rounds 5] [--seconds 1.5] [--device cpu|cuda] [--write]

A model of 36 layers, 32 query heads, 8 KV heads of 128 in bf16 at interval 64, prompt of 128 tokens protected; caches
are dense tensors, so paging is not in here. Where a call of all layers would take longer than --seconds, fewer are
measured, and the CPU measures one request: the table says how many, and extrapolated numbers have columns of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from policies import registry
from policies.base import Policy, Replacer, Scorer, resolve_dotted
from policies.calibration import Calibration, Meta
from policies.compaction import plan
from policies.draws import Draw
from policies.select import select
from policies.view import CacheView

LAYERS, QUERY_HEADS, HEADS, DIM, INTERVAL, PROMPT = 36, 32, 8, 128, 64, 128
REQUESTS = (1, 32)
STEPS = (36, 12, 4, 1)
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
MARKS = ("<!-- bench-policies: begin -->", "<!-- bench-policies: end -->")
_ITEM = 2
"""Bytes of a bf16 number."""


@dataclass(frozen=True)
class Setting:
    """What is measured: `layers` of the model's LAYERS and `requests` at once."""

    keep: int
    layers: int
    requests: int

    @property
    def units(self) -> int:
        """Layers times requests."""
        return self.layers * self.requests


@dataclass(frozen=True)
class Row:
    """One policy in one setting; seconds per call of every round, in order.

    moved   bytes that must be read or written at least: tensors that the score looked at, and rows that moved
    flops   of matrix products, counted while it ran
    """

    policy: str
    setting: Setting
    seconds: tuple[float, ...]
    moved: int
    flops: int


@dataclass(frozen=True)
class Roof:
    """What this machine reaches in the same run: bytes/s of a copy, FLOP/s of an fp32 matrix product."""

    bandwidth: float
    flops: float

    def seconds(self, row: Row) -> float:
        """Shortest time that the row's bytes and FLOPs allow."""
        return max(row.moved / self.bandwidth, row.flops / self.flops)


class Caches:
    """Random tensors of every kind that a view may show, made once per keep and shared by all policies.

    Rows are layers of request 0, then of request 1, and so on.
    """

    def __init__(self, keep: int, layers: int, requests: int, device: str) -> None:
        make = torch.Generator(device).manual_seed(keep)
        self.keep, self.slots, self.layers, self.device = keep, keep + INTERVAL, layers, device

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(layers * requests, *shape, generator=make, device=device, dtype=torch.bfloat16)

        self.keys, self.values = (random(HEADS, self.slots, DIM) for _ in range(2))
        self.queries = random(QUERY_HEADS, INTERVAL, DIM)
        self.attention = random(HEADS, self.slots).float().abs()
        self.positions = torch.arange(self.slots, device=device).repeat(layers * requests, HEADS, 1)
        self.calibration = _calibration()

    def rows(self, request: int, folded: int, layers: int) -> slice:
        """Rows of the first `layers` layers of a request, or of all layers of `folded` requests."""
        first = request * self.layers
        return slice(first, first + (folded - 1) * self.layers + layers)

    def view(self, policy: Policy, rows: slice, request: int) -> CacheView:
        """The event of those rows; rows of several requests count as further layers (policies that are rowwise)."""
        count = rows.stop - rows.start
        layers, heads = tuple(row % self.layers for row in range(count)), tuple(range(HEADS))
        state = (count, HEADS, self.slots, policy.needs.slot_state)
        return Watched(
            shape=state[:3],
            prot=PROMPT,
            recent=INTERVAL,
            n_select=self.keep - PROMPT - INTERVAL,
            t=10_000,
            layers=layers,
            heads=heads,
            draw=Draw(request, 1, layers, heads),
            positions=self.positions[rows],
            keys=self.keys[rows],
            values=self.values[rows],
            queries=self.queries[rows, :, -max(policy.needs.recent_queries, 1) :],
            attention=self.attention[rows],
            calibration=self.calibration,
            token_ids=self.positions[rows],
            slot_state=torch.zeros(state, device=self.device) if state[3] else None,
        )


class Watched(CacheView):
    """A view that remembers which tensors were asked for."""

    asked: dict[str, int] = {}  # noqa: RUF012 - one bench, one memory

    def need(self, name: str) -> torch.Tensor:
        """As CacheView.need."""
        tensor = super().need(name)
        Watched.asked[name] = tensor.nbytes
        return tensor


def event(policy: Scorer, caches: Caches, layers: int, requests: int) -> int:
    """One event of every request, as engines do it; rows moved per cache tensor."""
    moved = 0
    folded = requests if policy.rowwise and layers == caches.layers else 1
    for request in range(0, requests, folded):
        rows = caches.rows(request, folded, layers)
        view = caches.view(policy, rows, request)
        if policy.needs.slot_state:
            view = replace(view, slot_state=policy.observe(view))
        moves = plan(select(policy, view), caches.slots, order=policy.needs.order)
        moves.apply(caches.keys[rows])
        moves.apply(caches.values[rows])
        moved += int((moves.src != moves.dst).sum())
    return moved


def replaced(policy: Replacer, caches: Caches, layers: int, requests: int) -> int:
    """Victims of one interval, token by token: what an in-place policy does instead of an event."""
    victims = resolve_dotted(policy.victim_slots)
    seeds, ones = np.arange(requests, dtype=np.uint64), np.ones(requests, np.int64)
    keep, prot = caches.keep * ones, PROMPT * ones
    for n in range(10_000, 10_000 + INTERVAL):
        victims(seeds, np.arange(layers), np.arange(HEADS), n * ones, keep, prot, keep, INTERVAL)
    return 0


def call_of(policy: Policy, caches: Caches, layers: int, requests: int) -> Callable[[], int]:
    """The work of one event."""
    if isinstance(policy, Replacer):
        return lambda: replaced(policy, caches, layers, requests)
    assert isinstance(policy, Scorer)
    return lambda: event(policy, caches, layers, requests)


def timed(call: Callable[[], int], device: str) -> float:
    """Seconds of a call, device work included."""
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - began


def counted(call: Callable[[], int]) -> tuple[int, int]:
    """(bytes at least, FLOPs of matrix products) of a call."""
    Watched.asked = {}
    with FlopCounterMode(display=False) as counter:
        rows = call()
    # a moved row of keys and one of values, each read and written
    return sum(Watched.asked.values()) + rows * DIM * _ITEM * 2 * 2, counter.get_total_flops()


def policies_here() -> list[Policy]:
    """Every registered policy that evicts and whose parameters have defaults; `random` first."""
    built = [registry.build(name, {}) for name in registry.names() if registry.get(name).evicts and not required(name)]
    return sorted(built, key=lambda policy: (policy.name != "random", policy.name))


def required(name: str) -> list[str]:
    """Parameters of a policy that have no default, so that it cannot be measured without more."""
    declared = dataclasses.fields(registry.get(name))
    return [f.name for f in declared if f.default is f.default_factory is dataclasses.MISSING]


def measure(keep: int, requests: int, args: argparse.Namespace) -> Iterator[Row]:
    """Rows of every policy, measured in turn in every round."""
    caches = Caches(keep, LAYERS, requests, args.device)
    work, settings = {}, {}
    for policy in policies_here():
        trial = call_of(policy, caches, 1, requests)
        trial()
        once = timed(trial, args.device)
        layers = next((count for count in STEPS if count * once <= args.seconds), 1)
        work[policy.name] = call_of(policy, caches, layers, requests)
        settings[policy.name] = Setting(keep, layers, requests)
    counts = {name: counted(call) for name, call in work.items()}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    order = list(work)
    for turn in range(args.rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            seconds[name].append(timed(work[name], args.device))
    for name, values in seconds.items():
        yield Row(name, settings[name], tuple(values), *counts[name])


def roof(device: str) -> Roof:
    """Copy and matrix product, best of five."""
    block = torch.ones(64 * 2**20, device=device)
    target = torch.empty_like(block)
    square = torch.ones(2048, 2048, device=device)
    copy = min(timed(lambda: int(target.copy_(block).numel()), device) for _ in range(5))
    product = min(timed(lambda: int((square @ square).numel()), device) for _ in range(5))
    return Roof(2 * block.nbytes / copy, 2 * 2048**3 / product)


def table(rows: Sequence[Row], top: Roof) -> list[str]:
    """Markdown lines: measured first, extrapolated in columns of their own."""
    head = (
        "keep", "policy", "layers x requests measured", "ms per event", "ms per layer and request",
        "times random (range over rounds)", "MB at least", "GFLOP", "share of roof",
        *(f"extrapolated: ms at {LAYERS} x {count}" for count in REQUESTS),
    )  # fmt: skip
    lines = [_line(head), _line(["---"] * len(head))]
    for row in rows:
        base = _reference(rows, row)
        ratios = sorted(
            own / row.setting.units / (other / base.setting.units)
            for own, other in zip(row.seconds, base.seconds, strict=True)
        )
        middle, units = statistics.median(row.seconds), row.setting.units
        lines.append(
            _line(
                (
                    row.setting.keep, row.policy, f"{row.setting.layers} x {row.setting.requests}",
                    number(middle * 1e3), number(middle / units * 1e3),
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                    number(row.moved / 1e6), number(row.flops / 1e9), f"{top.seconds(row) / middle:.1%}",
                    *("measured" if (row.setting.layers, row.setting.requests) == (LAYERS, count)
                      else number(middle / units * LAYERS * count * 1e3) for count in REQUESTS),
                )
            )
        )  # fmt: skip
    return lines


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _reference(rows: Sequence[Row], row: Row) -> Row:
    """`random` in the same run."""
    same = (row.setting.keep, row.setting.requests)
    return next(r for r in rows if r.policy == "random" and (r.setting.keep, r.setting.requests) == same)


def machine(device: str) -> str:
    """What it ran on."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    cores = f"{os.cpu_count()} cores, {threads} threads, load {load:.1f} before it began"
    return f"a CPU ({platform.machine()}, {cores}), torch {torch.__version__}"


def write(lines: Sequence[str], marks: tuple[str, str] = MARKS, title: str = "Policies") -> None:
    """Replace the part of docs/benchmarks.md between the marks; append one where there is none."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else "# Benchmarks\n"
    if marks[0] not in text:
        text += f"\n## {title}\n\n{marks[0]}\n{marks[1]}\n"
    before, rest = text.split(marks[0])
    after = rest.split(marks[1])[1]
    PAGE.write_text("\n".join([before + marks[0], *lines, marks[1] + after]), encoding="utf-8")


def number(value: float) -> str:
    """Three digits, whole and grouped from 100 on: `0.366`, `16.5`, `12,600`."""
    digits = float(f"{value:.3g}")
    return f"{digits:,.0f}" if digits >= 100 else f"{digits:g}"


def main() -> None:
    """Print the table; with --write into docs/benchmarks.md too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="longest call; longer ones get fewer layers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    args = parser.parse_args()
    about, top = machine(args.device), roof(args.device)
    requests = REQUESTS if args.device == "cuda" else REQUESTS[:1]
    rows = [row for keep in args.keep for count in requests for row in measure(keep, count, args)]
    lines = [
        f"Made by `make bench-policies` on {about}; {args.rounds} rounds, every policy once a round in turn, medians.",
        f"Roof of the same run: copy {top.bandwidth / 1e9:.1f} GB/s, fp32 product {top.flops / 1e9:.0f} GFLOP/s.",
        "",
        "An event is score, select, slot map and moved rows of keys and values. `random_inplace` has none: its line is",
        "the victims of one interval of 64 tokens. What policies cost between events (attention mass of every step for",
        "`h2o`, recorded queries) is not in here.",
        *(
            f"Not measured: `{name}`, which needs {', '.join(lacks)}."
            for name in registry.names()
            if (lacks := required(name))
        ),
        "",
        *table(rows, top),
    ]
    print("\n".join(lines))
    if args.write:
        write(lines)


def _calibration() -> Calibration:
    make = np.random.default_rng(0)
    center = make.normal(size=(2, LAYERS, QUERY_HEADS, DIM // 2)).astype(np.float32)
    meta = Meta("", "", 1.0, "half", HEADS, DIM, DIM, tokens=1, corpus="")
    frequencies = 1e6 ** (-np.arange(DIM // 2) * 2 / DIM)
    return Calibration(center[0], center[1], np.hypot(*center) * np.float32(1.2), frequencies, meta)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
