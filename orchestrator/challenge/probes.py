"""The passcode probe of a challenge: a number said once, asked for many events later (orchestrator.probes)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from rich.console import Console

from orchestrator import figures
from orchestrator.challenge.design import REASONER, REFERENCE, Challenger, Setting
from orchestrator.errors import UserError
from orchestrator.probes.job import ProbeJob
from orchestrator.probes.session import Session
from orchestrator.probes.study import Row
from orchestrator.report_sheet import Sheet

INSTANCES = 16
DISTANCE_IN_KEEPS = 3


def passcode(challenger: Challenger, where: Setting, console: Console) -> tuple[Sheet | None, str]:
    """The sheet, and a note where there is none: a model or policy that the probes' engine cannot run."""
    console.print("Probe: passcode, said once and asked for later.")
    try:
        device = "cpu" if where.model == REASONER else "cuda"
        results = Session.open(_job(challenger, where), device).study(lambda label: None, lambda found: None)
    except UserError as error:
        return None, f"Probes: not run ({error})."
    rows = tuple(_row(row, challenger.title) for row in results.rows)
    return Sheet("Passcode probe: said once, asked later", _COLUMNS, rows), "; ".join(results.notes)


_COLUMNS = ("arm", ">events", ">retrieved", ">free answer", ">log p", ">n")


def _row(row: Row, challenger: str) -> tuple[str, ...]:
    recall = row.recall
    return (
        # a user's class need not have a name
        f"{challenger}{row.arm}" if row.arm.startswith(" ") else row.arm,
        str(row.events),
        f"{figures.percent(recall.retrieval)} {figures.interval(*recall.retrieval_interval, signed=False)}",
        figures.percent(recall.free),
        f"{recall.log_prob:.2f} [{recall.log_prob_interval[0]:.2f}, {recall.log_prob_interval[1]:.2f}]",
        str(recall.n),
    )


def _job(challenger: Challenger, where: Setting) -> ProbeJob:
    text = yaml.safe_dump(
        {
            "name": "challenge-probe",
            "model": {"path": where.model},
            "instances": INSTANCES,
            "search": 2,
            "arms": {
                "policies": [REFERENCE, challenger.arm()],
                "keep": where.keep,
                "interval": where.interval,
                "protection": where.protection,
            },
            "probes": [{"kind": "passcode", "lead": where.interval, "distance": DISTANCE_IN_KEEPS * where.keep}],
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.yaml"
        path.write_text(text, encoding="utf-8")
        return ProbeJob.load(path)
