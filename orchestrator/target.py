"""What a reading command is pointed at: a job file, whose store and campaign are meant, or a store directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.analysis import Question, Selection
from orchestrator.errors import UserError, closest
from orchestrator.scaling import scaled
from orchestrator.spec import JobSpec
from orchestrator.stats.sequential import Stopping, between
from orchestrator.stats.verdict import Rule
from orchestrator.store import mirror
from orchestrator.store.reader import Reader
from orchestrator.store.writer import missing

DEFAULT_STORE = Path("./store")


@dataclass(frozen=True, slots=True)
class Target:
    """An open store, and the campaign that is meant; None means everything in the store.

    analysis  the job's analysis section, protocol and samples, as far as they are known
    """

    reader: Reader
    campaign: str | None
    analysis: dict[str, Any]
    protocol: str
    samples: dict[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """Where the files of the store are read."""
        return self.reader.paths.root

    def question(self, reference: str | None = None, *, equivalence: bool = False, same_rule: bool = False) -> Question:
        """The comparison that the job declares, with the user's changes; equivalence is tested only where asked."""
        margin = float(self.analysis.get("margin_points", 2.0)) / 100 if equivalence else None
        looks = tuple(int(look) for look in self.analysis.get("looks", ()))
        stopping = _stopping(self.samples)
        return Question(
            reference=reference or str(self.analysis.get("reference", "random")),
            same_protection=same_rule,
            family=str(self.analysis.get("family", "model")),
            rule=Rule(margin=margin, published=self.protocol == "published"),
            looks=between(int(self.samples["min"]), stopping.most, looks) if stopping else looks,
            stopping=stopping,
        )


def resolve(path: Path | None, scale: float | None = None) -> Target:
    """Open what `path` names; the default is ./store.

    Raises UserError for a path that is neither, a bad job file, a missing store, and a job that was never run there.
    """
    path = mirror.local(path or DEFAULT_STORE)
    if path.is_dir():
        return of(Reader(path))
    if path.suffix not in (".yaml", ".yml") or not path.exists():
        raise UserError(
            f"{path} is neither a store directory nor a job file. Name a job that has been run (jobs/demo.yaml), or "
            "the directory that its execution.store points to."
        )
    job = JobSpec.load(path)
    if scale is not None:
        job = scaled(job, scale)
    store = Path(job.execution.store)
    if missing(store):
        raise UserError(
            f"job '{job.name}' has no store yet: there is nothing at {job.execution.store}. Run the job first "
            f"(evictbench run {path}), from the directory that its execution.store is relative to."
        )
    reader = Reader(store)
    campaigns = [campaign.campaign_id for campaign in reader.campaigns()]
    if job.name not in campaigns:
        raise UserError(
            f"job '{job.name}' was never run into {store}; it holds: {', '.join(campaigns) or 'no campaign'}."
            f"{closest(job.name, campaigns)} Run it first: evictbench run {path}"
        )
    resolved = job.resolved()
    # The file as it is now, not as it was submitted: analysis keys may change without running anything again.
    return Target(
        reader, job.name, dict(resolved["analysis"]), str(resolved["protocol"]), dict(resolved["samples"] or {})
    )


def of(reader: Reader, campaign: str | None = None) -> Target:
    """A campaign of an open store with its analysis section, or the store as a whole.

    Of a whole store, what all its campaigns declare alike applies; what they disagree about does not.
    """
    campaigns = [found for found in reader.campaigns() if campaign in (None, found.campaign_id)]
    resolved = [found.resolved() for found in campaigns]
    sections = [dict(entry.get("analysis", {})) for entry in resolved]
    common = {
        key: value
        for key, value in (sections[0] if sections else {}).items()
        if all(section.get(key) == value for section in sections)
    }
    protocols = {str(entry.get("protocol", "ours")) for entry in resolved}
    samples = [dict(entry.get("samples") or {}) for entry in resolved]
    alike = samples[0] if samples and all(entry == samples[0] for entry in samples) else {}
    return Target(reader, campaign, common, protocols.pop() if len(protocols) == 1 else "ours", alike)


def _stopping(samples: Mapping[str, Any]) -> Stopping | None:
    """How a job's samples may end early; None where their number is fixed."""
    if samples.get("until_width") is None:
        return None
    return Stopping(int(samples["max"]), float(samples["until_width"]))


def selection(campaign: str | None, only: Sequence[str]) -> Selection:
    """A selection from `model=NAME`, `task=NAME`, `policy=NAME`. Raises UserError for anything else."""
    kinds = {"model": "models", "task": "tasks", "policy": "policies"}
    chosen: dict[str, list[str]] = {name: [] for name in kinds.values()}
    for entry in only:
        kind, separator, name = entry.partition("=")
        if kind not in kinds or not separator or not name:
            raise UserError(f"--only {entry}: write KIND=NAME, where KIND is {', '.join(kinds)}.{closest(kind, kinds)}")
        chosen[kinds[kind]].append(name)
    return Selection(campaign=campaign, **chosen)
