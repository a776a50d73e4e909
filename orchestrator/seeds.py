"""Seeds by name, never by order: a row has the same in any arm, chunk, engine and attempt (contracts.md section 4)."""

from __future__ import annotations

import hashlib

from orchestrator.cells import canonical_json


def sample_seed(base: int, task: str, problem_id: str, sample: int) -> int:
    """Seed of the sampler, u64. No policy in it: arms share their text until the first eviction."""
    return _seed("sample", base, task, problem_id, sample)


def eviction_seed(base: int, task: str, problem_id: str, sample: int) -> int:
    """Seed of the eviction draws, u64; drawn apart from the sampler's so that either can be varied alone."""
    return _seed("evict", base, task, problem_id, sample)


def _seed(kind: str, base: int, task: str, problem_id: str, sample: int) -> int:
    # Canonical JSON keeps the fields apart: ("a", "bc") and ("ab", "c") must differ.
    name = canonical_json([kind, base, task, problem_id, sample]).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
