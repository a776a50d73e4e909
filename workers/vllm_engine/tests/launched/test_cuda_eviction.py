"""The CUDA adapter without vLLM's runner: its kernels and persistent tensors against the core in torch.

Both are given the same queries, keys and values. The reference keeps whole rows per slot and is told what to move and
where to write; two ranks of the adapter hold two and one of its three heads, in paged blocks, behind vLLM's mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from policies.base import Needs
from policies.budget import Protection
from policies.compaction import Moves
from policies.kernels.paged import PagedCache
from policies.registry import build
from workers.api import Eviction
from workers.vllm_engine.cuda_core import DeviceCore
from workers.vllm_engine.cuda_eviction import CudaEviction
from workers.vllm_engine.events import EvictionCore, Source
from workers.vllm_engine.records import Records, RecordShape
from workers.vllm_engine.settings import EngineSettings, to_extra_args
from workers.vllm_engine.state import ALWAYS_GIVEN, level
from workers.vllm_engine.telemetry import RankFacts, measure, merge

LAYERS, HEADS, GROUP, SIZE, BLOCK, MOST = (3, 5), 3, 2, 16, 4, 16
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KEEP, INTERVAL, SCALE = 16, 4, SIZE**-0.5
WINDOWED = (("window", 4), ("kernel", 3))


@dataclass(frozen=True)
class Case:
    """A request: prompt tokens in chunks."""

    policy: str
    chunks: tuple[int, ...]
    protection: Protection = Protection.PROMPT
    keep: int = KEEP
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def prompt(self) -> int:
        return sum(self.chunks)

    def eviction(self, seed: int) -> Eviction:
        return Eviction(self.policy, dict(self.params), self.keep, INTERVAL, self.protection, 2, seed)


CASES = {
    "random": Case("random", (7,)),
    "unprotected": Case("random", (9,), Protection.NONE, 13),
    "shared": Case("random_shared", (5,), Protection.SINKS),
    "block": Case("random_block", (6,), params=(("block", 3),)),
    "recent": Case("recent", (4, 3), Protection.NONE),
    "in-place": Case("random_inplace", (7,)),
    "in-place, shrunk": Case("random_inplace", (19,), Protection.SINKS, 13),
    "full": Case("full", (3,)),
    "snapkv": Case("snapkv", (4, 4, 1), Protection.SINKS, params=WINDOWED),
    "by score": Case("rkv_official", (6,), Protection.NONE, params=(*WINDOWED, ("slot_order", "score"))),
    "vase": Case("vase", (5,), params=WINDOWED),
    "h2o": Case("h2o", (8,), Protection.NONE),
    "h2o of decodes": Case("h2o", (8,), Protection.SINKS, params=(("prefill", False),)),
    "with state": Case("g_kv", (6,), Protection.NONE),
}


def settings() -> EngineSettings:
    asked = [asdict(build(case.policy, dict(case.params)).needs) for case in CASES.values()]
    most = {name: max((needs[name] for needs in asked), key=level) for name in asdict(Needs()) if name not in
            ALWAYS_GIVEN}  # fmt: skip
    return EngineSettings(KEEP, INTERVAL, 20, Needs(**most))


def tables(given: EngineSettings, heads: int, device: torch.device) -> Records:
    return Records(
        given.needs, RecordShape(len(LAYERS), heads, heads * GROUP, SIZE, torch.float32), MOST, given.capacity, device
    )


class Reference:
    """EvictionCore over whole rows."""

    def __init__(self, given: EngineSettings) -> None:
        self.records = tables(given, HEADS, torch.device("cpu"))
        self.core = EvictionCore(given, LAYERS, range(HEADS), MOST, self.records)
        self.rows: dict[str, list[torch.Tensor]] = {}

    def admit(self, name: str, admitted: int, extra: Any) -> None:
        self.core.requests.finish([name])
        self.core.requests.add(name, CASES[name].prompt, admitted, extra)
        shape = (len(LAYERS), HEADS, 2 * KEEP + 64, SIZE)
        self.rows[name] = [torch.full(shape, float("nan")) for _ in range(2)]

    def step(self, names: Sequence[str], computed: np.ndarray, lens: np.ndarray, qkv: Sequence[torch.Tensor]) -> None:
        """qkv: [L, T, heads, D] each."""
        query, key, value = qkv
        source = Source(
            lambda row, slots: tuple(part[:, :, :slots] for part in self.rows[names[row]]),  # type: ignore[arg-type,return-value]
            lambda row, count: torch.zeros(count, dtype=torch.int64),
        )
        step = self.core.step(names, computed, lens, source)
        for batch_rows, moves in step.moves:
            for index, row in enumerate(batch_rows):
                own = slice(index * len(LAYERS), (index + 1) * len(LAYERS))
                for part in self.rows[names[row]]:
                    Moves(moves.src[own], moves.dst[own]).apply(part)
        starts = np.cumsum(lens) - lens
        replacing = step.replacing.tolist()
        for row, (name, n, count) in enumerate(zip(names, computed.tolist(), lens.tolist(), strict=True)):
            for part, fresh in zip(self.rows[name], (key, value), strict=True):
                new = fresh[:, starts[row] : starts[row] + count].transpose(1, 2)
                if row in replacing:
                    assert step.victims is not None
                    slot = torch.from_numpy(step.victims[replacing.index(row)])[..., None, None]
                    part.scatter_(2, slot.expand(*slot.shape[:3], SIZE), new)
                else:
                    first = int(step.slots[row]) if count == 1 else n
                    part[:, :, first : first + count] = new
        if step.recording is not None:
            self._record(names, step.recording, query, key)

    def _record(self, names: Sequence[str], plan: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        for layer in range(len(LAYERS)):
            self.records.keep_queries(plan, layer, query[layer])
            if len(plan.rows):
                held = [self.rows[names[row]][0][layer] for row in plan.rows]

                def keys(slots: int, held: list[torch.Tensor] = held) -> torch.Tensor:
                    return torch.stack([part[:, :slots] for part in held]).nan_to_num()

                self.records.add_decode_mass(plan, layer, query[layer, plan.newest], SCALE, keys)
            self.records.add_prompt_mass(plan, layer, query[layer], key[layer], SCALE)


@dataclass
class Batch:
    """The fields of vLLM's InputBatch that the adapter reads."""

    req_ids: list[str]
    num_reqs: int
    num_computed_tokens_np: np.ndarray
    num_scheduled_tokens: np.ndarray
    idx_mapping_np: np.ndarray
    query_start_loc_np: np.ndarray
    num_tokens: int
    num_tokens_after_padding: int
    seq_lens: torch.Tensor
    seq_lens_cpu_upper_bound: torch.Tensor
    positions: torch.Tensor


class Rank:
    """One worker of the adapter: its heads, its blocks, and vLLM's tensors as the V2 runner fills them."""

    def __init__(self, given: EngineSettings, heads: range) -> None:
        self.heads = heads
        blocks = -(-given.capacity // BLOCK)
        memory = [torch.full((1 + MOST * blocks, BLOCK, len(heads), 2 * SIZE), float("nan"), device=DEVICE)
                  for _ in LAYERS]  # fmt: skip
        self.cache = PagedCache.joined([layer.transpose(1, 2) for layer in memory])
        order = torch.randperm(MOST * blocks, generator=torch.Generator().manual_seed(heads[0])) + 1
        self.own = order.view(MOST, blocks).int().to(DEVICE)
        self.table = torch.zeros(MOST, blocks + 30, dtype=torch.int32, device=DEVICE)
        core = DeviceCore(given, LAYERS, heads, MOST, tables(given, len(heads), DEVICE), None, DEVICE, ahead=True)
        self.eviction = CudaEviction(core, self.cache, self.table, max_tokens=256)
        self.mapping, self.positions = (torch.zeros(256, dtype=torch.int64, device=DEVICE) for _ in range(2))

    def step(self, names: Sequence[str], computed: np.ndarray, lens: np.ndarray, qkv: Sequence[torch.Tensor]) -> None:
        index = np.array([list(CASES).index(name) for name in names])
        self.table[: len(names)] = torch.nn.functional.pad(self.own[index], (0, 30))
        batch = self._batch(list(names), computed, lens, index)
        self.eviction.begin(batch, self.table[: len(names)], torch.zeros(MOST, 999, dtype=torch.int32, device=DEVICE))
        lengths = batch.seq_lens.clone()
        placed = self.eviction.place(batch, self.mapping[: batch.num_tokens_after_padding])
        assert torch.equal(batch.seq_lens, lengths), "the sampler's own tensor"
        assert placed.seq_lens.data_ptr() == self.eviction.lengths.data_ptr()
        assert placed.seq_lens.tolist() == [*placed.seq_lens_cpu_upper_bound.tolist()]
        self._forward(qkv, batch)

    def idle(self, rows: int) -> None:
        """What capture and dummy runs do: as many decodes of nobody."""
        before = [part.clone() for part in (*self.cache.keys, *self.cache.values, *self._tables())]
        lens = np.ones(rows, np.int64)
        batch = self._batch([f"dummy {row}" for row in range(rows)], lens * 0, lens, np.arange(rows))
        self.mapping.fill_(-1)
        self.table.zero_()
        assert self.eviction.place(batch, self.mapping[:rows]).seq_lens.tolist()[:rows] == [1] * rows
        self._forward(tensors(rows, 99), batch)
        for old, new in zip(before, (*self.cache.keys, *self.cache.values, *self._tables()), strict=True):
            assert torch.equal(old.view(torch.uint8), new.view(torch.uint8))

    def rows(self, name: str, slots: int) -> list[torch.Tensor]:
        table = self.own[list(CASES).index(name)]
        return [self.cache.gather(which, table, slots).cpu() for which in ("keys", "values")]

    def _forward(self, qkv: Sequence[torch.Tensor], batch: Batch) -> None:
        query, key, value = (
            torch.nn.functional.pad(part, (0, 0, 0, 0, 0, batch.num_tokens_after_padding - part.shape[1]), value=7.0)
            for part in qkv
        )
        kv = slice(self.heads[0], self.heads[-1] + 1)
        own = slice(kv.start * GROUP, kv.stop * GROUP)
        slots = self.mapping[: batch.num_tokens_after_padding]
        for layer in range(len(LAYERS)):
            parts = [part[layer].to(DEVICE) for part in (query[:, :, own], key[:, :, kv], value[:, :, kv])]
            self.eviction.write(layer, parts[1], parts[2], slots)
            self.eviction.record(layer, parts[0], parts[1], SCALE, slots)

    def _batch(self, names: list[str], computed: np.ndarray, lens: np.ndarray, index: np.ndarray) -> Batch:
        starts, tokens = np.concatenate(([0], np.cumsum(lens))), int(lens.sum())
        positions = np.concatenate([np.arange(n, n + count) for n, count in zip(computed, lens, strict=True)])
        self.positions[:tokens] = torch.from_numpy(positions).to(DEVICE)
        row = torch.from_numpy(np.repeat(np.arange(len(lens)), lens)).to(DEVICE)
        block = self.table[row, self.positions[:tokens] // BLOCK].long()
        self.mapping[:tokens] = block * BLOCK + self.positions[:tokens] % BLOCK
        self.mapping[tokens:] = -1
        whole = torch.from_numpy(computed + lens).int()
        seq_lens = torch.nn.functional.pad(whole, (0, 1)).to(DEVICE)
        return Batch(
            names, len(names), computed.astype(np.int32), lens.astype(np.int32), index, starts, tokens, tokens + 2,
            seq_lens, seq_lens.cpu(), self.positions[: tokens + 2],
        )  # fmt: skip

    def _tables(self) -> list[torch.Tensor]:
        core = self.eviction.core
        records = core.requests.records
        assert records is not None
        assert records.mass is not None
        assert records.slot_state is not None
        return [core.ledger.positions, core.ledger.counted, records.queries, records.mass, records.slot_state]


def tensors(tokens: int, seed: int) -> list[torch.Tensor]:
    """Queries, keys and values [L, T, heads, D]."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(len(LAYERS), tokens, heads, SIZE, generator=generator) for heads in (HEADS * GROUP, HEADS, HEADS)
    ]


def drive(reference: Reference, ranks: Sequence[Rank], outputs: int) -> dict[str, int]:
    """All requests together, prompts in chunks, the batch's order changing; one is preempted and admitted again.

    Returns the tokens computed of each.
    """
    computed = dict.fromkeys(CASES, 0)
    chunks = {name: list(case.chunks) for name, case in CASES.items()}
    for turn in range(outputs):
        if turn == 0:
            admit(reference, ranks, list(CASES), {name: case.prompt for name, case in CASES.items()})
        if turn == 14:
            admit(reference, ranks, ["random"], {"random": computed["random"]})
            chunks["random"], computed["random"] = [computed["random"]], 0
        names = [name for name in CASES if name != "full" or computed[name] < KEEP]
        names = names if turn % 2 else names[::-1]
        lens = np.array([chunks[name].pop(0) if chunks[name] else 1 for name in names])
        done = np.array([computed[name] for name in names])
        qkv = tensors(int(lens.sum()), turn)
        reference.step(names, done, lens, qkv)
        for rank in ranks:
            rank.step(names, done, lens, qkv)
            if turn in (3, 20):
                rank.idle(turn % MOST)
        for name, count in zip(names, lens.tolist(), strict=True):
            computed[name] += count
    return computed


def admit(reference: Reference, ranks: Sequence[Rank], names: Sequence[str], admitted: dict[str, int]) -> None:
    for name in names:
        extra = to_extra_args(CASES[name].eviction(seed=len(name)))
        reference.admit(name, admitted[name], extra)
        for rank in ranks:
            rank.eviction.core.requests.finish([name])
            rank.eviction.core.add(name, CASES[name].prompt, admitted[name], extra)


def cached(reference: Reference, name: str) -> int:
    """Slots that a request holds."""
    state = reference.core.requests.batch([name]).states[0]
    return state.schedule.lengths.physical(int(reference.core.requests.newest[state.row]) + 1)


Driven = tuple[Reference, list[Rank], dict[str, list[list[torch.Tensor]]]]
"""The cached rows of every request, then one step more on the ranks alone, as vLLM runs when it schedules ahead."""


@pytest.fixture(scope="module")
def driven() -> Driven:
    given = settings()
    reference, ranks = Reference(given), [Rank(given, range(2)), Rank(given, range(2, 3))]
    computed = drive(reference, ranks, 30)
    held = {name: [rank.rows(name, cached(reference, name)) for rank in ranks] for name in CASES}
    names = [name for name in CASES if name != "full"]
    lens, done = np.ones(len(names), np.int64), np.array([computed[name] for name in names])
    for rank in ranks:
        rank.step(names, done, lens, tensors(len(names), 1234))
    return reference, ranks, held


def facts(core: EvictionCore, name: str, count: int | None = None) -> RankFacts:
    found = measure(core, name, count)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_ranks_on_the_device_are_the_core_in_torch(driven: Driven, name: str) -> None:
    reference, ranks, held = driven
    slots, newest = cached(reference, name), reference.core.requests.newest
    for part, whole in enumerate(reference.rows[name]):
        assert torch.equal(torch.cat([rows[part] for rows in held[name]], dim=1), whole[:, :, :slots])
    count = int(newest[reference.core.requests.row(name)]) + 1
    expected = facts(reference.core, name)
    made = [facts(rank.eviction.core, name, count) for rank in ranks]
    ours, theirs = merge(made, 0), merge([expected], 0)
    assert ours.prompt_kept_mean == pytest.approx(theirs.prompt_kept_mean, rel=1e-12)  # sums in another order
    assert replace(ours, prompt_kept_mean=theirs.prompt_kept_mean) == theirs
    least = 0 if name == "full" else 20 if "in-place" in name else 4
    assert expected.events >= least
