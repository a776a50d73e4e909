"""Asking a running campaign for something through its store: pause, resume, cancel, retry. Works from any machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError, closest
from orchestrator.spec import JobSpec
from orchestrator.store import mirror
from orchestrator.store.campaign import Campaign, Control
from orchestrator.store.paths import StorePaths
from orchestrator.store.writer import check_version

SILENT_SECONDS = 30.0


def find(job: Path, store: Path | None = None) -> Campaign:
    """The campaign of a job in its store. Raises UserError when the store holds none."""
    spec = JobSpec.load(job)
    try:
        return campaign(StorePaths(store or Path(spec.execution.store)), spec.name)
    except UserError as error:
        raise UserError(f"{error} Run it: evictbench run {job}") from None


def campaign(paths: StorePaths, name: str) -> Campaign:
    """The campaign of that name. Raises UserError when the store holds none."""
    known = {found.campaign_id: found for found in campaigns(paths.root)}
    if name not in known:
        listed = ", ".join(known) or "none"
        raise UserError(f"{paths.name} holds no campaign '{name}'; campaigns: {listed}.{closest(name, known)}")
    return known[name]


def campaigns(store: Path) -> list[Campaign]:
    """Campaigns of a store, by name. Raises UserError when it is no store of ours."""
    paths = StorePaths(store)
    check_version(paths)
    mirror.pull(paths.campaigns)
    names = sorted(path.name for path in paths.campaigns.iterdir()) if paths.campaigns.is_dir() else []
    return [Campaign(paths, name) for name in names]


def age(facts: dict[str, Any]) -> float | None:
    """Seconds since a heartbeat; None when it does not say."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(facts["updated_at"])).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None


def running(campaign: Campaign) -> list[dict[str, Any]]:
    """Heartbeats of the drivers that are alive."""
    return [facts for facts in campaign.drivers() if (seconds := age(facts)) is not None and seconds < SILENT_SECONDS]


def ask(campaign: Campaign, control: Control) -> str:
    """Leave a request for the campaign's drivers; returns who will hear it: `driver e1a2b on host (pid 7)`.

    Raises UserError when no driver is alive, or when the store cannot be written.
    """
    alive = running(campaign)
    if not alive:
        raise UserError(
            f"no driver of campaign '{campaign.campaign_id}' is alive, so nobody would hear that. "
            "`evictbench status` shows how far it is; `evictbench run` goes on with it."
        )
    try:
        campaign.ask(control)
    except OSError as error:
        raise UserError(f"the request cannot be written in {campaign.directory}: {error}") from error
    return ", ".join(f"driver {facts['driver']} on {facts.get('host')} (pid {facts.get('pid')})" for facts in alive)
