"""Files of one campaign: what was asked for, what was tried, what is running (contracts.md section 4).

Only rows are evidence. Everything here may be replaced by a later submission of the same job, and a torn or missing
file means "unknown", never a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.store import files, mirror
from orchestrator.store.paths import StorePaths
from orchestrator.store.schema import PLAN


class Control(StrEnum):
    """What the drivers of a campaign are asked to do."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"
    RETRY = "retry"
    """As run, after putting parked chunks back in line once."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Reads and writes campaigns/<id>/. Writing raises OSError."""

    paths: StorePaths
    campaign_id: str

    @property
    def directory(self) -> Path:
        """campaigns/<id>/ of the store."""
        return self.paths.campaign(self.campaign_id)

    def log(self, engine_id: str) -> Path:
        """What an engine's process prints."""
        return self.directory / "logs" / f"{engine_id}.log"

    def submit(
        self, spec: str, resolved: Mapping[str, Any], environment: Mapping[str, Any], plan: Sequence[Mapping[str, Any]]
    ) -> None:
        """Record a submission: the job file's text, the resolved job, where it was submitted, and rows of PLAN.

        A grown job of the same name replaces the older record; its rows stay.
        """
        self._replace("spec.yaml", files.text_writer(spec))
        self._replace("resolved.json", files.json_writer(resolved))
        self._replace("environment.json", files.json_writer(environment))
        self.replan(plan)

    def replan(self, plan: Sequence[Mapping[str, Any]]) -> None:
        """Replace the planned cells: adaptive sampling wants more of some."""
        table = pa.Table.from_pylist([dict(row) for row in plan], schema=PLAN)
        self._replace("plan.parquet", files.table_writer(table))

    def spec(self) -> str | None:
        """Text of the job file as submitted last."""
        try:
            return mirror.fetch(self.directory / "spec.yaml").read_text(encoding="utf-8")
        except OSError:
            return None

    def resolved(self) -> dict[str, Any]:
        """The resolved job; empty when unknown."""
        return _mapping(files.read_json(self.directory / "resolved.json"))

    def environment(self) -> dict[str, Any]:
        """Where and with what the job was submitted last; empty when unknown."""
        return _mapping(files.read_json(self.directory / "environment.json"))

    def plan(self) -> pa.Table:
        """Planned cells, columns of PLAN; no rows when unknown."""
        try:
            return pq.read_table(mirror.fetch(self.directory / "plan.parquet"), schema=PLAN)
        except (OSError, pa.ArrowException):
            return PLAN.empty_table()

    def control(self) -> Control:
        """What the driver is asked to do; `run` unless someone said otherwise."""
        wanted = _mapping(files.read_json(self.directory / "control.json")).get("control")
        return Control(wanted) if wanted in set(Control) else Control.RUN

    def ask(self, control: Control) -> None:
        """Leave a request for the driver, which looks for it every few seconds."""
        self._replace("control.json", files.json_writer({"control": control.value}))

    def driver_beat(self, name: str, facts: Mapping[str, Any]) -> None:
        """Replace what is known of a running driver; several may drive one campaign."""
        self._replace(f"drivers/{name}.json", files.json_writer({"driver": name, **facts}))

    def driver_ended(self, name: str) -> None:
        """Forget a driver."""
        files.remove(self.directory / "drivers" / f"{name}.json")

    def drivers(self) -> list[dict[str, Any]]:
        """Last heartbeat of every driver that has not said that it ended."""
        return _values(self.directory / "drivers")

    def record_attempt(self, chunk: ChunkId, attempt: int, facts: Mapping[str, Any]) -> bool:
        """Record why an attempt ended without a commit; False when it is on record already."""
        name = f"{chunk.cell_id}-{chunk.name}-a{attempt:03d}.json"
        value = {"cell_id": chunk.cell_id, "sample": chunk.sample, "block": chunk.block, "attempt": attempt, **facts}
        return files.create_if_absent(
            self.directory / "attempts" / name, files.json_writer(value), self.paths.temporary
        )

    def attempts(self) -> list[dict[str, Any]]:
        """Recorded attempts, sorted by cell, chunk and number."""
        return _values(self.directory / "attempts")

    def heartbeat(self, engine_id: str, facts: Mapping[str, Any]) -> None:
        """Replace what is known of a running engine."""
        self._replace(f"live/{engine_id}.json", files.json_writer({"engine_id": engine_id, **facts}))

    def retire(self, engine_id: str) -> None:
        """Forget a stopped engine."""
        files.remove(self.directory / "live" / f"{engine_id}.json")

    def live(self) -> list[dict[str, Any]]:
        """Last heartbeat of every engine that has not been retired."""
        return _values(self.directory / "live")

    def _replace(self, name: str, write: Any) -> None:
        files.replace(self.directory / name, write, self.paths.temporary)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _values(directory: Path) -> list[dict[str, Any]]:
    with suppress(UserError):  # a bucket that is silent for a while leaves what was known before
        mirror.pull(directory)
    found = (files.read_json(path) for path in sorted(directory.glob("*.json")))
    return [value for value in found if isinstance(value, dict)]
