"""What stands in the place of a page when a store cannot be shown: always what is wrong and the next step."""

from __future__ import annotations

from pathlib import Path

from orchestrator import analysis
from orchestrator.errors import UserError
from orchestrator.store.paths import StorePaths
from orchestrator.store.reader import Reader
from orchestrator.store.writer import check_version


def check(store: Path) -> None:
    """Raises UserError where there is no store, or one of another schema version."""
    if not store.is_dir():
        raise UserError(
            f"There is no store at {store}. Run a job first (evictbench run jobs/demo.yaml), or name the directory "
            "that execution.store in the job file points to."
        )
    check_version(StorePaths(store))


def is_readable(store: Path) -> bool:
    """True for a store of this schema version, with or without rows."""
    try:
        check(store)
    except UserError:
        return False
    return True


def empty_text(store: Path, reader: Reader) -> str:
    """What a store without readable rows tells its reader."""
    skipped = reader.skipped
    if skipped:
        first = skipped[0]
        return (
            f"The store {store} has no readable rows: {len(skipped)} file(s) were skipped, the first is "
            f"{first.path.relative_to(store)} ({first.reason}). Remove such files and run the job again; it makes only "
            "what is missing."
        )
    simulated = analysis.simulated_cells(reader)
    if simulated:
        return (
            f"The store {store} holds only rows of a simulated engine ({simulated[0]}), which are never results. Run a "
            "job whose engine.kind is vllm."
        )
    names = ", ".join(campaign.campaign_id for campaign in reader.campaigns())
    running = f"Campaign {names} is on record; its first rows appear here when a chunk of 8 is done. " if names else ""
    return f"The store {store} holds no rows yet. {running}Start or resume a job with: evictbench run JOB"
