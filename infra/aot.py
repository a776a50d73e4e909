"""Compile every kernel at the sizes of a real model, without a GPU, and say what it costs: `make aot`.

    python infra/aot.py                         table for sm_80, sm_90 and sm_100
    python infra/aot.py --write docs/kernels.md the same, put between the page's aot markers
    python infra/aot.py --arch 90 --launches F  one architecture; what was compiled is listed in F as JSON

Each module of policies/kernels names its launches in `at_real_size`. Exits 1 when a kernel spills registers or wants
more shared memory than a block of that architecture may have.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import policies.kernels
from policies.kernels.launch import Launch, watch

SHARED_LIMIT = {80: 163, 90: 227, 100: 227}
"""KiB of shared memory that one block may have (CUDA C++ programming guide, compute capabilities)."""
BEGIN, END = "<!-- aot: begin -->", "<!-- aot: end -->"


@dataclass(frozen=True)
class Cost:
    """What the compiler says of one kernel: registers a thread, bytes of spill stores and loads, of shared memory.

    unstaged   stores that follow a load without a barrier, in a kernel that must have one (launch.staged)
    """

    registers: int
    spills: int
    shared: int
    unstaged: int

    def fault(self, arch: int) -> str | None:
        """Why this kernel must not ship, or None."""
        if self.spills:
            return f"spills {self.spills} bytes"
        if self.unstaged:
            return f"has {self.unstaged} stores after a load without a barrier in between"
        if self.shared > SHARED_LIMIT[arch] * 1024:
            return f"wants {self.shared} bytes of shared memory, a block has {SHARED_LIMIT[arch]} KiB"
        return None

    def __str__(self) -> str:
        return f"{self.registers} / {self.spills} / {self.shared / 1024:.1f}"


def launches() -> dict[Launch, Any]:
    """Kernel of every launch that the modules name, in the order of their files."""
    found: dict[Launch, Any] = {}

    def remember(kernel: Any, launch: Launch) -> None:
        found[launch] = kernel

    with watch(remember, run=False):
        for info in pkgutil.iter_modules(policies.kernels.__path__, "policies.kernels."):
            if not info.ispkg:
                getattr(importlib.import_module(info.name), "at_real_size", lambda: None)()
    return found


def compiled(kernel: Any, launch: Launch, arch: int) -> Cost:
    """Compile one launch; pointers are 16-byte aligned, as torch allocates them."""
    types, constants = dict(launch.signature), dict(launch.constants)
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*")
    }
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        result = triton.compile(
            ASTSource(kernel, signature, constants, aligned), GPUTarget("cuda", arch, 32), dict(launch.options)
        )
    text = log.getvalue()
    return Cost(
        registers=int(_found(r"Used (\d+) registers", text)),
        spills=int(_found(r"(\d+) bytes spill stores", text)) + int(_found(r"(\d+) bytes spill loads", text)),
        shared=result.metadata.shared,
        unstaged=_unstaged(result.asm["ptx"]) if getattr(kernel, "staged", False) else 0,
    )


def _unstaged(ptx: str) -> int:
    """Global stores of a basic block with no barrier after its last global load."""
    count, loaded = 0, False
    for line in ptx.splitlines():
        if re.search(r"ld\.global|bar\.sync|^\$L__BB", line):
            loaded = "ld.global" in line
        count += loaded and "st.global" in line
    return count


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        sys.exit(f"ptxas did not print '{pattern}'; its output was:\n{text}")
    return match[1]


def labels(found: Iterable[Launch]) -> dict[Launch, str]:
    """Kernel, and the constants in which its launches differ."""
    by_kernel: dict[str, list[Launch]] = {}
    for launch in found:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    named = {}
    for kernel, same in by_kernel.items():
        shared = set.intersection(*(set(launch.constants) for launch in same))
        for launch in same:
            told = (f"{name}={value}" for name, value in launch.constants if (name, value) not in shared)
            named[launch] = " ".join((f"`{kernel}`", *told))
    return named


def rows(costs: dict[Launch, dict[int, Cost]], architectures: list[int]) -> Iterator[str]:
    """A Markdown table: a row a launch, a column an architecture."""
    yield "| kernel | warps | " + " | ".join(f"sm_{arch}" for arch in architectures) + " |"
    yield "|---|---|" + "---|" * len(architectures)
    named = labels(costs)
    for launch, by_arch in costs.items():
        cells = [named[launch], str(dict(launch.options)["num_warps"]), *(str(by_arch[arch]) for arch in architectures)]
        yield "| " + " | ".join(cells) + " |"


def put(page: Path, table: str) -> None:
    """Replace what stands between the markers of the page."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{page} must hold the lines '{BEGIN}' and '{END}' once each.")
    head, _, rest = text.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, action="append", choices=sorted(SHARED_LIMIT), help="compute capability")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    parser.add_argument("--launches", type=Path, metavar="FILE", help="list what was compiled here, as JSON")
    arguments = parser.parse_args()
    architectures = arguments.arch or sorted(SHARED_LIMIT)
    found = launches()
    knobs.nvidia.dump_ptxas_log = True
    with tempfile.TemporaryDirectory() as cache:
        # compiled afresh: a cached kernel would not print what it costs
        knobs.cache.dir = cache
        costs = {
            launch: {arch: compiled(kernel, launch, arch) for arch in architectures} for launch, kernel in found.items()
        }
    table = "\n".join(rows(costs, architectures))
    print("registers / spilled bytes / KiB of shared memory\n" + table)
    if arguments.launches:
        arguments.launches.write_text(json.dumps(sorted(str(launch) for launch in found)))
    faults = [
        f"{labels(costs)[launch]} on sm_{arch}: {cost.fault(arch)}"
        for launch, by_arch in costs.items()
        for arch, cost in by_arch.items()
        if cost.fault(arch)
    ]
    if faults:
        sys.exit("\n".join(faults))
    if arguments.write:
        put(arguments.write, table)


if __name__ == "__main__":
    main()
