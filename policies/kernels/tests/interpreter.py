"""Triton's interpreter made fit for tests; import it only where TRITON_INTERPRET=1 was set before triton."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def patch_once() -> None:
    """Patch triton.language once per module of device functions: the interpreter does at every call of one, for good,

    which is nine tenths of a test's time. A launch patches and restores for itself.
    """
    patched: set[int] = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        module = id(function.fn.__globals__)
        if module not in patched:
            interpreter._patch_lang(function.fn)
            patched.add(module)
        return function.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def widen_bf16_products() -> None:
    """The interpreter keeps bf16 as bit patterns and multiplies matrices of those: widen them first, which is exact."""
    product = InterpreterBuilder.create_dot

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return product(builder, widened(a), widened(b), *rest)

    InterpreterBuilder.create_dot = create_dot
