"""Keyed randomness: Philox-4x32-10 (Salmon et al., SC 2011), a pure function of key and counter.

Key = eviction_seed, u64, split into (low, high) u32. Counter words = (event or n, layer, head, slot), all global
indices (contracts.md section 4). So a draw depends on nothing else: not on batch, schedule, rank or device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

SHARED_HEAD = 0xFFFFFFFF
"""Head word of draws that all KV heads of a layer share."""
INPLACE_SLOT = 0xFFFFFFFE
"""Slot word of in-place draws: a class member is drawn, not a score per slot."""

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_ROUNDS = 10
_LAZY_ROUNDS = 3
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_CPU = torch.device("cpu")

U64 = npt.NDArray[np.uint64]


def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> npt.NDArray[np.uint32]:
    """Philox-4x32-10 words, uint32 [..., 4], over the broadcast shape of seed (u64) and counter words (below 2^32)."""
    even, odd, key = _all_but_last_round(seed, c0, c1, c2, c3)
    products = even * _pair(_MULTIPLIERS, even.ndim)
    fresh = (products[::-1] >> _HALF) ^ odd ^ key
    words = (fresh[0], products[1] & _LOW, fresh[1], products[0] & _LOW)
    return np.stack(words, axis=-1).astype(np.uint32)


def inplace_victims(  # noqa: PLR0913 - one array per request fact, handed over every decode step
    seeds: npt.NDArray[np.uint64],
    layers: npt.NDArray[np.int64],
    heads: npt.NDArray[np.int64],
    n: npt.NDArray[np.int64],
    keep: npt.NDArray[np.int64],
    prot: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    interval: int,
) -> npt.NDArray[np.int64]:
    """Slot that token n of each request overwrites, int64 [B, L, H] (contracts.md section 1).

    seeds [B] u64; layers [L] and heads [H] global indices; n, keep (K'), prot, start (n0) [B] in tokens; needs
    K' - prot >= interval and n >= start. One member of class c = (n - n0 + K' - prot) mod r among the slots
    prot + c, prot + c + r, ... < K' is drawn.
    """
    free = keep - prot
    cls = (n - start + free) % interval
    members = (free - cls + (interval - 1)) // interval
    word, _ = _first_words(seeds[:, None, None], n[:, None, None], layers[:, None], heads, INPLACE_SLOT)
    member = ((word * members.astype(np.uint64)[:, None, None]) >> _HALF).view(np.int64)
    member *= interval
    member += (prot + cls)[:, None, None]
    return member


@dataclass(frozen=True, slots=True)
class Draw:
    """The draws of one event of one request.

    seed     eviction seed, u64; or one per layer row, [L, 1, 1], where events of several requests are folded
    event    index of the event, from 0; or as seed
    layers   global layer indices
    heads    global KV head indices
    device   where the numbers are made; they are the same everywhere. numpy on the CPU, a Triton kernel elsewhere
    """

    seed: int | U64
    event: int | U64
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    device: torch.device = field(default=_CPU, kw_only=True)

    def keys(self, slots: int, first: int = 0) -> torch.Tensor:
        """Integer keys in [0, 2^63), int64 [L, H, slots]: the first 63 random bits, so ties are improbable.

        first   slots before it need no key of their own and may get any
        """
        return self._slot_keys(self.heads, slots, first)

    def shared_keys(self, slots: int, first: int = 0) -> torch.Tensor:
        """Integer keys shared by the heads of a layer, int64 [L, 1, slots]; `first` as for keys."""
        return self._slot_keys((SHARED_HEAD,), slots, first)

    def block_keys(self, slots: int, block: int) -> torch.Tensor:
        """Keys of runs of `block` slots counted from slot 0, int64 [L, H, slots]; a run has its first slot's key."""
        if self.device != _CPU:
            return self._launch(self.heads, slots, run=block)
        starts = np.arange(0, slots, block, dtype=np.uint64)
        return _keys(*self._words(self.heads, starts)).repeat_interleave(block, dim=2)[..., :slots]

    def uniform(self, slots: int) -> torch.Tensor:
        """Uniform numbers in [0, 1) with 24 bits, fp32 [L, H, slots]."""
        if self.device != _CPU:
            return self._launch(self.heads, slots, uniform=True)
        word, _ = self._words(self.heads, np.arange(slots, dtype=np.uint64))
        return torch.from_numpy((word >> np.uint64(8)).astype(np.float32)) * 2.0**-24

    def _slot_keys(self, heads: tuple[int, ...], slots: int, first: int) -> torch.Tensor:
        if self.device != _CPU:
            return self._launch(heads, slots)
        keys = _keys(*self._words(heads, np.arange(first, slots, dtype=np.uint64)))
        return torch.nn.functional.pad(keys, (first, 0))

    def _launch(self, heads: tuple[int, ...], slots: int, run: int = 1, uniform: bool = False) -> torch.Tensor:
        from policies.kernels.philox import draw  # noqa: PLC0415 - triton exists only where a GPU may

        def there(words: Any, count: int) -> torch.Tensor:
            bits = np.broadcast_to(np.asarray(words, np.uint64).reshape(-1), (count,)).view(np.int64)
            return torch.tensor(bits, device=self.device)

        rows = len(self.layers)
        seeds, events, layers = (there(words, rows) for words in (self.seed, self.event, self.layers))
        return draw(seeds, events, layers, there(heads, len(heads)), slots, run, uniform)

    def _words(self, heads: tuple[int, ...], slots: U64) -> tuple[U64, U64]:
        layers = np.array(self.layers, np.uint64)[:, None, None]
        return _first_words(self.seed, self.event, layers, np.array(heads, np.uint64)[:, None], slots)


def _first_words(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[U64, U64]:
    """Words 0 and 1, u32 values: half of the last round's work is saved."""
    even, odd, key = _all_but_last_round(seed, c0, c1, c2, c3)
    product = even[1] * _MULTIPLIERS[1]
    return (product >> _HALF) ^ odd[0] ^ key[0], product & _LOW


def _all_but_last_round(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[U64, U64, U64]:
    """Nine rounds: words (0, 2), words (1, 3), [2, ...] each, and the last round's key; u32 values in u64 lanes.

    Early rounds keep every word in its own small shape and let it broadcast: a grid of counters is full only after
    three. Later rounds work on word pairs in place, since numpy's cost here is calls and not arithmetic.
    """
    seed = np.asarray(seed, np.uint64)
    keys = _round_keys(seed)
    w0, w1, w2, w3 = (np.asarray(word).astype(np.uint64) for word in (c0, c1, c2, c3))
    for k0, k1 in keys[:_LAZY_ROUNDS]:
        first, second = _MULTIPLIERS[0] * w0, _MULTIPLIERS[1] * w2
        w0, w1, w2, w3 = (second >> _HALF) ^ w1 ^ k0, second & _LOW, (first >> _HALF) ^ w3 ^ k1, first & _LOW
    shape = np.broadcast_shapes(w0.shape, w1.shape, w2.shape, w3.shape)
    even, odd, products = np.empty((3, 2, *shape), np.uint64)
    even[0], even[1], odd[0], odd[1] = w0, w2, w1, w3
    multipliers = _pair(_MULTIPLIERS, even.ndim)
    keys = keys.reshape(_ROUNDS, 2, *(1 for _ in range(len(shape) - seed.ndim)), *seed.shape)
    for key in keys[_LAZY_ROUNDS:-1]:
        np.multiply(even, multipliers, out=products)
        np.right_shift(products[::-1], _HALF, out=even)
        even ^= odd
        even ^= key
        np.bitwise_and(products[::-1], _LOW, out=odd)
    return even, odd, keys[-1]


def _round_keys(seed: U64) -> U64:
    """Key pairs of the ten rounds, u32 values, [10, 2, *seed.shape]."""
    halves = np.stack((seed & _LOW, seed >> _HALF))
    steps = np.arange(_ROUNDS, dtype=np.uint64)[:, None] * _WEYL
    return (halves + steps.reshape(_ROUNDS, 2, *(1 for _ in seed.shape))) & _LOW


def _pair(values: U64, ndim: int) -> U64:
    return values.reshape(2, *(1 for _ in range(ndim - 1)))


def _keys(word0: U64, word1: U64) -> torch.Tensor:
    return torch.from_numpy(((word0 << np.uint64(31)) | (word1 >> np.uint64(1))).view(np.int64))
