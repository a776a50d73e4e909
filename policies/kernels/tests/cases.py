"""Inputs of kernel tests: caches in random order, with poison wherever no row of a request lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from policies.kernels.paged import Events, PagedCache


@dataclass(frozen=True)
class Shape:
    """Sizes of a test cache; `layout` is the memory order of a layer's blocks (B), heads (H) and slots (N)."""

    layers: int = 2
    heads: int = 2
    size: int = 24
    block: int = 5
    dtype: torch.dtype = torch.float32
    layout: str = "BNH"


REAL = Shape(layers=1, heads=8, size=128, block=16, dtype=torch.bfloat16)
"""A layer of PagedCache.at_real_size: these launches are the ones compiled ahead of time."""
SHAPES = (
    Shape(),
    Shape(layers=3, heads=1, size=8, block=1, dtype=torch.float16, layout="HBN"),
    Shape(layers=1, heads=3, size=17, block=7, dtype=torch.bfloat16, layout="BHN"),
    REAL,
)


def rng(seed: int) -> torch.Generator:
    """A generator where the kernels run."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def name(shape: Shape) -> str:
    """Test id."""
    return f"L{shape.layers}H{shape.heads}D{shape.size}b{shape.block}-{str(shape.dtype)[6:]}-{shape.layout}"


def paged(shape: Shape, slots: list[int], generator: torch.Generator) -> tuple[PagedCache, torch.Tensor]:
    """A cache of random rows of requests with that many slots, NaN elsewhere, and its block table int32 [R, blocks].

    Blocks lie in random order, some belong to no request; unused entries of the table are block 0, nobody's.
    """
    counts = [-(-count // shape.block) for count in slots]
    blocks = 1 + sum(counts) + 3
    order = iter((torch.randperm(blocks - 1, generator=generator) + 1).tolist())
    table = torch.zeros(len(slots), max(counts) + 1, dtype=torch.int32)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([next(order) for _ in range(count)])
    sizes = {"B": blocks, "H": shape.heads, "N": shape.block}
    logical = [shape.layout.index(axis) for axis in "BHN"]
    memory = (*(sizes[axis] for axis in shape.layout), 2 * shape.size)
    layers = [torch.full(memory, float("nan"), dtype=shape.dtype).permute(*logical, 3) for _ in range(shape.layers)]
    cache = PagedCache.joined(layers)
    for request, count in enumerate(slots):
        slot = torch.arange(count)
        block = table[request, slot // shape.block].long()
        for rows in (*cache.keys, *cache.values):
            fresh = torch.randn(count, shape.heads, shape.size, generator=generator)
            rows[block, slot % shape.block] = fresh.to(shape.dtype)
    return cache, table


def events(frames: list[tuple[int, int, int, int]], block_table: torch.Tensor, rows: list[int]) -> Events:
    """Events of requests with (slots, prot, recent, keep)."""
    slots, prot, recent, keep = (torch.tensor(column, dtype=torch.int32) for column in zip(*frames, strict=True))
    return Events(
        block_table, torch.tensor(rows, dtype=torch.int32), slots, prot, recent, keep,
        max_slots=max(f[0] for f in frames) + 3, max_keep=max(f[3] for f in frames) + 2,
        max_evicted=max(f[0] - f[3] for f in frames) + 1,
    )  # fmt: skip


def clone(cache: PagedCache) -> PagedCache:
    """The same rows and strides in other memory."""
    keys, values = ([t.clone(memory_format=torch.preserve_format) for t in ts] for ts in (cache.keys, cache.values))
    return PagedCache.of(keys, values)


def same(ours: PagedCache, theirs: PagedCache) -> bool:
    """Bit equality of every element, NaNs too."""
    integer = {2: torch.int16, 4: torch.int32}[ours.keys[0].element_size()]
    pairs = zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True)
    return all(torch.equal(a.contiguous().view(integer), b.contiguous().view(integer)) for a, b in pairs)
