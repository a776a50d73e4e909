"""The one door through which kernels are launched, so that it is known which signatures exist.

Ahead-of-time compilation (infra/aot.py) walks the launches at real sizes without a device; the interpreter's tests walk
them with numbers. Both see the same `Launch` records, and a test holds them against one another (contracts.md
section 7).

Numbers that stay the same as long as an engine lives (strides, sizes) are compile-time constants. Numbers that change
from call to call are runtime integers which no value may specialise, so that no step ever waits for a compiler; they
have 32 bits, and kernels widen them before multiplying, since an offset may pass 2^31.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton

_POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16",
    torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """What decides the machine code of a launch.

    signature   Triton type of every runtime argument, in order
    constants   compile-time arguments
    options     num_warps and the like
    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, int], ...]


Watcher = Callable[[Any, Launch], None]
_watchers: list[tuple[Watcher, bool]] = []


def kernel(fn: Callable[..., Any]) -> Any:
    """`triton.jit` for what `launch` starts: one compilation serves all values of arguments that are tl.int32.

    Pointers keep Triton's specialisation by alignment, which wide loads need.
    """
    numbers = [name for name, p in inspect.signature(fn).parameters.items() if p.annotation == "tl.int32"]
    jitted = triton.jit(fn, do_not_specialize=numbers)
    jitted.numbers = frozenset(numbers)
    return jitted


def staged(jitted: Any) -> Any:
    """Mark a kernel whose writes may hit what it reads: infra/aot.py refuses it when no barrier stands in between."""
    jitted.staged = True
    return jitted


@contextmanager
def watch(watcher: Watcher, run: bool = True) -> Iterator[None]:
    """Call watcher(kernel, launch) at every launch; with run=False none runs, so arguments may be meta tensors."""
    _watchers.append((watcher, run))
    try:
        yield
    finally:
        _watchers.pop()


def launch(jitted: Any, grid: Sequence[int], *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """Start a kernel over the grid with runtime arguments in order and compile-time ones by name.

    num_stages is always 1: no kernel here wants its loads moved ahead of its barriers.
    """
    options = {"num_warps": num_warps, "num_stages": 1}
    for watcher, _ in _watchers:
        watcher(jitted, _describe(jitted, args, constants, options))
    if 0 not in grid and all(run for _, run in _watchers):
        jitted[tuple(grid)](*args, **constants, **options)


def _describe(jitted: Any, args: Sequence[Any], constants: dict[str, Any], options: dict[str, int]) -> Launch:
    names = [name for name in jitted.arg_names if name not in constants]
    assert jitted.numbers == {name for name, arg in zip(names, args, strict=True) if isinstance(arg, int)}
    signature = tuple((name, _type(arg)) for name, arg in zip(names, args, strict=True))
    return Launch(
        f"{jitted.fn.__module__.rpartition('.')[2]}.{jitted.fn.__name__}",
        signature,
        tuple(constants.items()),
        tuple(options.items()),
    )


def _type(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return _POINTERS[arg.dtype]
    if isinstance(arg, float):
        return "fp32"
    assert isinstance(arg, int)
    assert -(2**31) <= arg < 2**31, arg
    return "i32"
