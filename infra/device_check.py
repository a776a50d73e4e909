"""What only a GPU can prove, part by part, each in a process of its own with its own time; docs/device.md explains it.

infra/device_check.sh [--parts kernels graphs] [--list]

A part that fails, runs past its time or cannot run here is reported, and the rest goes on. Writes results.json and
report.md into --out. Exit status 0 when all parts passed, 1 when one did not, 2 without a CUDA device.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"
PARTS_MODULE = "infra.device_parts"


@dataclass(frozen=True, slots=True)
class Part:
    """One check: a function of infra.device_parts of the same name.

    proves   what its PASS means, one sentence
    seconds  time it may take
    needs    packages without which it is not run
    """

    name: str
    proves: str
    seconds: int
    needs: tuple[str, ...]


PARTS = (
    Part("kernels", "Every kernel equals its twin in torch on this GPU, indices and rows bit for bit.", 110,
         ("torch", "triton", "pytest", "numpy")),
    Part("replay", "Captured eviction kernels give on replay what they give when launched, for new draws as well.", 40,
         ("torch", "triton", "numpy")),
    Part("graphs", "vLLM with FULL CUDA graphs gives the tokens and kept sets of vLLM run eagerly.", 140,
         ("torch", "vllm")),
    Part("reference", "Tokens and kept sets in fp32 are those of the dense reference on the CPU.", 60,
         ("torch", "vllm", "transformers")),
    Part("tax", "Eviction tax of a 4B model: random_inplace at most 1 %, random at most 3 %.", 130,
         ("torch", "vllm", "transformers")),
)  # fmt: skip
VERSIONS = ("torch", "triton", "vllm", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a part; lines are Markdown."""

    name: str
    status: str
    seconds: float
    lines: tuple[str, ...]


def environment() -> tuple[str | None, list[str]]:
    """Name of the CUDA device, None without one, and what is installed here."""
    lines = [f"python {sys.version.split()[0]}"]
    for package in VERSIONS:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} is not installed")
    if find_spec("torch") is None:
        return None, lines
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None, [*lines, "torch sees no CUDA device"]
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    device = (
        f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB, compute capability {torch.cuda.get_device_capability(0)}"
    )
    return device, [*lines, device, *_driver()]


def _driver() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv"]
    try:
        shown = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ["nvidia-smi did not answer"]
    return shown.stdout.strip().splitlines()


def run(part: Part, out: Path, seconds: float) -> Found:
    """The part in a process of its own, ended with its children after so many seconds."""
    lacking = [package for package in part.needs if find_spec(package) is None]
    if lacking:
        return Found(part.name, NOT_RUN, 0.0, (f"not installed: {', '.join(lacking)}",))
    began, result = time.monotonic(), out / f"{part.name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", PARTS_MODULE, part.name, str(out), str(seconds)]
    with (out / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"\n== {part.name}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Found(part.name, FAIL, time.monotonic() - began, (f"ran past its {seconds:.0f} s; see log.txt",))
    passed = time.monotonic() - began
    if not result.exists():
        return Found(part.name, FAIL, passed, (f"exit status {status} without a result; see log.txt",))
    said = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return Found(part.name, PASS if said["passed"] else FAIL, passed, tuple(said["lines"]))


def report(about: Sequence[str], parts: Sequence[Part], found: Sequence[Found]) -> str:
    """Markdown."""
    proves = {part.name: part.proves for part in parts}
    text = ["# Device check", "", *(f"* {line}" for line in about), ""]
    text += ["| part | result | s | what PASS means |", "|---|---|---|---|"]
    text += [f"| {each.name} | {each.status} | {each.seconds:.0f} | {proves[each.name]} |" for each in found]
    for each in found:
        text += ["", f"## {each.name}: {each.status}", "", *each.lines]
    return "\n".join(text) + "\n"


def check(parts: Sequence[Part], out: Path, show: Callable[[str], None]) -> int:
    """Run what can be run, write the results, say the exit status."""
    device, about = environment()
    show("\n".join(about))
    if device is None:
        show("\nThis machine has no CUDA device that torch can use. Not run:")
        for part in parts:
            show(f"  {part.name}: {part.proves}")
        return 2
    out.mkdir(parents=True, exist_ok=True)
    (out / "log.txt").write_text("", encoding="utf-8")
    found: list[Found] = []
    for part in parts:
        show(f"\n{part.name}: at most {part.seconds} s")
        found.append(run(part, out, part.seconds))
        show(f"{found[-1].status} after {found[-1].seconds:.0f} s\n" + "\n".join(found[-1].lines))
        # written after every part: what is known stays when the machine is taken away
        facts = {"device": device, "environment": about, "parts": [asdict(each) for each in found]}
        (out / "results.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
        (out / "report.md").write_text(report(about, parts, found), encoding="utf-8")
    return int(any(each.status != PASS for each in found))


def main() -> int:
    """Check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--parts", nargs="+", default=names, choices=names)
    parser.add_argument("--out", type=Path, default=Path("device-check"))
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    args = parser.parse_args()
    chosen = [part for part in PARTS if part.name in args.parts]
    if args.list:
        for part in chosen:
            print(f"{part.name:10} {part.seconds:4} s  {part.proves}")
        return 0
    return check(chosen, args.out, lambda text: print(text, flush=True))


if __name__ == "__main__":
    sys.exit(main())
