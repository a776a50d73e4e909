"""What no single key of a job file can tell: keys that contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import closest
from orchestrator.spec_errors import show
from orchestrator.tasks.registry import published
from orchestrator.yaml_source import Loc

if TYPE_CHECKING:
    from orchestrator.spec import JobSpec
    from orchestrator.spec_sections import ArmSpec

Mistake = tuple[Loc, str]


def contradictions(job: JobSpec) -> Iterator[Mistake]:
    """Every contradiction with the key path that should change."""
    yield from _samples(job)
    yield from _names(job)
    yield from _budgets(job)
    yield from _references(job)
    yield from _money(job)
    yield from _spread(job)
    yield from _protocol(job)


def _samples(job: JobSpec) -> Iterator[Mistake]:
    looks, samples = job.analysis.looks, job.samples
    if list(looks) != sorted(set(looks)):
        yield ("analysis", "looks"), f"{list(looks)} must rise: each look is after more samples than the one before."
    if samples is None:
        return
    if looks and max(looks) > samples.max:
        end = f"samples ends at {samples.max}"
        yield ("analysis", "looks"), f"a look after {max(looks)} samples is never reached; {end}."
    if samples.max < samples.min:
        yield ("samples", "max"), f"max {samples.max} is less than min {samples.min}."
    if samples.min < samples.max and samples.until_width is None:
        yield ("samples",), "min and max differ, so the stopping rule is needed. Add until_width, in points."
    if samples.max > 1 and job.sampling.temperature == 0:
        copies = f"{samples.max} samples at temperature 0 would be {samples.max} copies of one text"
        yield ("samples",), f"{copies}. Write samples: 1, or raise sampling.temperature."


def _protocol(job: JobSpec) -> Iterator[Mistake]:
    """The bundle is one thing: a job that sets a part of it to something else means another protocol."""
    if job.protocol != "published":
        return
    for index, task in enumerate(job.tasks):
        for option, value in published(task.name).items():
            if task.options().get(option, value) != value:
                yield ("tasks", index, option), f"protocol published has {option}: {value}. Leave {option} out."
    for key in ("top_k", "min_p"):
        if getattr(job.sampling, key):
            yield ("sampling", key), f"protocol published draws without {key}. Leave it out."


def _names(job: JobSpec) -> Iterator[Mistake]:
    yield from _repeated(("models",), [model.path for model in job.models])
    yield from _repeated(("tasks",), [f"{task.name} {task.options()}" for task in job.tasks])


def _repeated(loc: Loc, values: list[str]) -> Iterator[Mistake]:
    for index, value in enumerate(values):
        if value in values[:index]:
            yield (*loc, index), "listed twice. Remove one of them."


def _budgets(job: JobSpec) -> Iterator[Mistake]:
    for loc, arm in arm_entries(job):
        if arm.policy.evicts and arm.keep is None and job.arms.keep is None:
            yield loc, f"policy '{arm.name}' needs a budget. Add arms.keep (tokens per head), or keep to this arm."


def arm_entries(job: JobSpec) -> Iterator[tuple[Loc, ArmSpec]]:
    """Every arm entry of a job with its key path: those of the grid, then those of include."""
    for index, arm in enumerate(job.arms.policies):
        yield ("arms", "policies", index), arm
    for index, entry in enumerate(job.include):
        yield ("include", index), entry


def _money(job: JobSpec) -> Iterator[Mistake]:
    rates, gpu = job.execution.rates, job.resources.gpu
    if job.execution.budget.dollars is not None and not rates.get(gpu):
        listed = ", ".join(rates) or "none"
        hint = f"Add execution.rates: {{{gpu}: price}}, or set resources.gpu to a kind that has one (rates: {listed})."
        yield ("execution", "budget", "dollars"), f"there is no price of a GPU-hour for resources.gpu '{gpu}'. {hint}"


def _spread(job: JobSpec) -> Iterator[Mistake]:
    tp, pp, nodes = job.resources.tp, job.resources.pp, job.resources.nodes
    if tp * pp % nodes:
        yield ("resources", "nodes"), f"{nodes} does not divide the {tp * pp} GPUs of an engine (tp x pp)."


def _references(job: JobSpec) -> Iterator[Mistake]:
    known = {
        "model": [model.path for model in job.models],
        "task": [task.name for task in job.tasks],
        "policy": [arm.name for _, arm in arm_entries(job)],
    }
    for index, arm in enumerate(job.include):
        yield from _unknown(("include", index, "model"), arm.model or (), known["model"])
        yield from _unknown(("include", index, "task"), arm.task or (), known["task"])
    for index, entry in enumerate(job.exclude):
        for key, names in known.items():
            yield from _unknown(("exclude", index, key), getattr(entry, key) or (), names)
        if not entry.model_fields_set:
            yield ("exclude", index), "an empty entry would exclude everything. Name at least one key."
    if "reference" in job.analysis.model_fields_set:
        labels = [arm.label for _, arm in arm_entries(job)]
        yield from _unknown(("analysis", "reference"), (job.analysis.reference,), labels)


def _unknown(loc: Loc, values: Iterable[str], known: list[str]) -> Iterator[Mistake]:
    for value in values:
        if value not in known:
            choices = ", ".join(dict.fromkeys(known))
            yield loc, f"{show(value)} is not in this job; it has {choices}.{closest(value, known)}"
