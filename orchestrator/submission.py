"""What travels to a cluster with a job: the job file and the files it names, nothing else of its folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.spec import JobSpec
from orchestrator.spec_checks import arm_entries
from orchestrator.store import mirror
from orchestrator.tasks import registry

# Ray 2.60 refuses a package over 512 MiB; older docs and proxies say 100, and data belong on the nodes anyway.
MAX_BYTES = 100 * 1024**2


@dataclass(frozen=True, slots=True)
class Package:
    """Files of a submission, relative to the job's folder; size in bytes."""

    root: Path
    files: tuple[Path, ...]
    size: int

    def write(self, directory: Path) -> None:
        """Copy the files below `directory`, with their relative paths."""
        for file in self.files:
            target = directory / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / file, target)


def package(job: JobSpec, limit: int = MAX_BYTES) -> Package:
    """The job file, its policy files, calibrations and data files.

    Raises UserError for a file that is missing or lies outside the job's folder, and for a package that is too large.
    """
    root = job.folder.resolve()
    named = {job.source.path.resolve(): "the job file", **dict(_named(job, root))}
    for path, what in named.items():
        if not path.is_file():
            raise UserError(f"{what} {path} does not exist.")
        if root not in path.parents:
            raise UserError(
                f"{what} {path} lies outside the job's folder {root}, so it cannot travel with the job. Move it below "
                "that folder, or name a path that every node has (a task's data file may be absolute)."
            )
    files = tuple(sorted(path.relative_to(root) for path in named))
    sizes = {file: (root / file).stat().st_size for file in files}
    if (size := sum(sizes.values())) > limit:
        largest = max(files, key=lambda file: sizes[file])
        raise UserError(
            f"the job's files are {size / 1024**2:.0f} MiB, at most {limit / 1024**2:.0f} may travel with a job; the "
            f"largest is {largest} ({sizes[largest] / 1024**2:.0f} MiB). Put it where every node sees it and name it "
            "by an absolute path."
        )
    return Package(root, files, size)


def _named(job: JobSpec, root: Path) -> Iterator[tuple[Path, str]]:
    for _, arm in arm_entries(job):
        file, colon, _ = arm.reference.rpartition(":")
        if colon and file.endswith(".py"):
            yield Path(file), "policy file"
    for model in job.models:
        if model.calibration is not None and not Path(model.calibration).is_absolute():
            yield (root / model.calibration).resolve(), f"calibration of model {model.path}"
    for task in job.tasks:
        for key in registry.path_options(task.name):
            value = task.options().get(key)
            # An absolute path is the user's word that every node has the file.
            if value is not None and not Path(value).is_absolute():
                yield (root / value).resolve(), f"{key} of task {task.name}"


def refuse_local_places(job: JobSpec, store: str) -> None:
    """Raises UserError for a store or a model that only this machine can mean: relative paths end in the package."""
    if not mirror.is_url(store) and not Path(store).is_absolute():
        raise UserError(
            f"{job.place('execution', 'store')}: the store '{store}' is relative, but the job runs on another machine. "
            "Name a directory that every node sees by its absolute path, or a bucket (s3://BUCKET/PREFIX), or pass "
            "--store."
        )
    for index, model in enumerate(job.models):
        path = Path(model.path)
        if not path.is_absolute() and path.is_dir():
            raise UserError(
                f"{job.place('models', index, 'path')}: '{model.path}' is a directory of this machine. Name a hub "
                "id or an absolute path that every node has."
            )


def next_id(campaign: str, known: Iterable[str]) -> str:
    """`<campaign>-<n>`, n above those that the cluster knows; Ray refuses an id twice, so it is a lock."""
    pattern = re.compile(re.escape(campaign) + r"-(\d+)")
    numbers = [int(match[1]) for name in known if (match := pattern.fullmatch(name))]
    return f"{campaign}-{max(numbers, default=0) + 1}"
