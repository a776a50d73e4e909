"""The measured packing against vLLM's own writer, and moves against a plain copy."""

from __future__ import annotations

import pytest
import torch
from vllm import _custom_ops as ops

from workers.vllm_engine.layout import CacheRows, Walk, fold_heads

BLOCKS, HEADS, LAYERS = 6, 2, 3


def isa_dtypes() -> list[tuple[str, torch.dtype]]:
    cases = [("vec", torch.float32), ("vec", torch.bfloat16)]
    if torch.cpu._is_amx_tile_supported():
        cases.append(("amx", torch.bfloat16))
    return cases


def write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, isa: str) -> None:
    """rows [2, T, H, D] at slots [T], as vLLM's attention layer writes them."""
    blocks, heads, block, row = cache.shape
    key, value = cache.view(blocks, heads, 2 * block, row // 2).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(
        rows[0], rows[1], key, value, slots, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
    )


@pytest.mark.parametrize("head_size", [32, 64, 96, 128])
@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize(("isa", "dtype"), isa_dtypes())
def test_rows_are_found_and_moved(isa: str, dtype: torch.dtype, block_size: int, head_size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    whole = torch.zeros(LAYERS, BLOCKS, HEADS, block_size, 2 * head_size, dtype=dtype)
    layers = list(whole.unbind(0))
    block_ids = torch.tensor([4, 1, 3])
    slots = 2 * block_size + 5
    logical = torch.arange(slots)
    physical = block_ids[logical // block_size] * block_size + logical % block_size
    written = torch.randn(LAYERS, 2, slots, HEADS, head_size, generator=generator).to(dtype)
    for layer, rows in zip(layers, written, strict=True):
        write(layer, rows, physical, isa)
    cache = CacheRows(layers, isa)

    keys, values = cache.gather(block_ids, slots)
    expected = written.permute(1, 0, 3, 2, 4)  # [2, L, H, S, D]
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])
    few = block_size + 3
    by_request = cache.keys(1, torch.stack((block_ids, block_ids.flip(0))), few)
    assert torch.equal(by_request[0], expected[0, 1, :, :few])
    assert torch.equal(by_request[1, :, :5], expected[0, 1, :, 2 * block_size :])

    source = torch.randint(0, slots, (1, LAYERS, HEADS, 7), generator=generator)
    target = torch.stack([torch.randperm(slots, generator=generator)[:7] for _ in range(LAYERS * HEADS)])
    target = target.view(1, LAYERS, HEADS, 7)
    cache.move(block_ids[None], source, target)
    moved = expected.clone()
    for layer, head, m in torch.ones_like(source[0]).nonzero().tolist():
        moved[:, layer, head, target[0, layer, head, m]] = expected[:, layer, head, source[0, layer, head, m]]
    keys, values = cache.gather(block_ids, slots)
    assert torch.equal(keys, moved[0])
    assert torch.equal(values, moved[1])


def test_a_packing_of_several_strides_is_walked() -> None:
    walk = Walk.of(torch.tensor([0, 1, 8, 9]), torch.tensor([0, 2, 4]), 1)
    assert walk.rows(torch.arange(32)[None], 3).tolist() == [[1, 3, 5], [2, 4, 6], [9, 11, 13], [10, 12, 14]]


@pytest.mark.parametrize("offsets", [[0, 1, 4], [0, 2, 1, 4], [0, 1, 5, 7]])
def test_a_packing_that_is_no_walk_over_strides_is_refused(offsets: list[int]) -> None:
    with pytest.raises(RuntimeError, match="no walk over strides"):
        Walk.of(torch.tensor([0]), torch.tensor(offsets), 0)


def test_folded_slots_write_each_head_to_its_own_slot() -> None:
    cache = torch.zeros(BLOCKS, HEADS, 32, 64)
    rows = torch.randn(2, 1, HEADS, 32)
    slots = torch.tensor([(2 * HEADS + 0) * 32 + 7, (5 * HEADS + 1) * 32 + 9])
    key, value = fold_heads(cache)
    ops.cpu_attn_reshape_and_cache(
        rows[0].reshape(HEADS, 1, 32), rows[1].reshape(HEADS, 1, 32), key, value, slots, "vec",
        k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto",
    )  # fmt: skip
    reader = CacheRows([cache], "vec")
    keys, values = reader.gather(torch.tensor([2, 5]), 64)
    assert torch.equal(keys[0, 0, 7], rows[0, 0, 0])
    assert torch.equal(values[0, 1, 32 + 9], rows[1, 0, 1])
    assert int((keys != 0).any(-1).sum()) == 2
