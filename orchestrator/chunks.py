"""Chunks: the unit of work and of commit, with deterministic names (contracts.md section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.api import Request

# Part of the store's schema version, never of configuration: growing samples or limits must not rename a chunk.
BLOCK = 8


@dataclass(frozen=True, slots=True)
class ChunkId:
    """One sample index of one block of BLOCK consecutive problems of a cell."""

    cell_id: str
    sample: int
    block: int

    @property
    def name(self) -> str:
        """File stem in the store: `s0003-b00012`."""
        return f"s{self.sample:04d}-b{self.block:05d}"


@dataclass(frozen=True, slots=True)
class Row:
    """One generation to make for a chunk."""

    problem_id: str
    sample_seed: int
    prompt_sha256: str
    request: Request


@dataclass(frozen=True, slots=True)
class Work:
    """A chunk ready for an engine: what the driver hands to a worker. Carries no gold answer."""

    chunk: ChunkId
    attempt: int
    rows: tuple[Row, ...]


def blocks_for(n_problems: int) -> int:
    """Number of blocks that cover n_problems; only full blocks exist, so callers round limits up first."""
    return -(-n_problems // BLOCK)


def plan_missing(
    cell_id: str, n_problems: int, samples: int, committed: Iterable[ChunkId], start: int = 0
) -> Sequence[ChunkId]:
    """Chunks of a cell that are not committed, sample-major so that whole passes over the task finish first."""
    done = set(committed)
    wanted = (ChunkId(cell_id, s, b) for s in range(start, samples) for b in range(blocks_for(n_problems)))
    return [chunk for chunk in wanted if chunk not in done]
