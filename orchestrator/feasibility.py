"""Reasons why a grid point cannot run as written, and remarks on those that can; lengths in tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.arms import Arm, Rule
from orchestrator.resources import LoadedModel, LoadedTask
from orchestrator.spec import JobSpec
from policies.base import Replacer
from policies.budget import Overflow, Protection


def model_refusals(job: JobSpec, index: int, model: LoadedModel) -> Iterator[str]:
    """A context beyond the model's window, and KV heads that tensor parallelism cannot split."""
    if model.ref.max_model_len > model.resolved.window:
        yield (
            f"{job.place('models', index, 'max_model_len')}: {model.ref.max_model_len} is longer than the window of "
            f"{model.spec.path} ({model.resolved.window} tokens). Write at most {model.resolved.window}."
        )
    if model.resolved.n_kv_heads % job.resources.tp:
        yield (
            f"{job.place('resources', 'tp')}: {job.resources.tp} does not divide the {model.resolved.n_kv_heads} "
            f"KV heads of {model.spec.path}. Choose a divisor."
        )


def context_refusals(job: JobSpec, model: LoadedModel, task: LoadedTask, lengths: Sequence[int]) -> Iterator[str]:
    """The longest prompt plus the job's max_tokens must fit the context: an engine would cut or refuse the row."""
    longest, window = max(lengths), model.ref.max_model_len
    problem = task.problems[lengths.index(longest)].problem_id
    what = f"the longest prompt of {task.spec.name} ({problem}, {longest} tokens)"
    if longest >= window:
        yield (
            f"{job.place('models')}: {what} leaves no room in max_model_len {window} of {model.spec.path}. "
            f"Raise max_model_len (the model's window is {model.resolved.window}), or leave the task out."
        )
    elif model.sampling.fits and longest + model.sampling.ref.max_tokens > window:
        yield (
            f"{job.place('sampling', 'max_tokens')}: {what} plus max_tokens {model.sampling.ref.max_tokens} exceeds "
            f"max_model_len {window} of {model.spec.path}. Write max_tokens {window - longest} or less, "
            "or raise max_model_len."
        )


def budget_refusals(job: JobSpec, arm: Arm, task: str, lengths: Sequence[int]) -> Iterator[str]:
    """Budgets that no row, or with overflow refuse not every row, could honour."""
    if arm.rule is None:
        return
    budget, shortest, longest = arm.rule.budget, min(lengths), max(lengths)
    where = f"{job.place(*arm.budget_loc)}: {arm.title}"
    floor = arm.rule.protected(shortest) + budget.recent
    newest = f"the {budget.recent} newest tokens"
    if budget.keep < floor:
        yield (
            f"{where}: keep {budget.keep} cannot hold {_protected(arm.rule, task, shortest)}{newest}. "
            f"Give keep at least {floor}."
        )
    elif budget.keep <= budget.interval:
        yield (
            f"{where}: keep {budget.keep} must be larger than interval {budget.interval}, the tokens between events. "
            f"Give keep at least {budget.interval + 1}, or a smaller interval."
        )
    elif arm.rule.overflow is Overflow.REFUSE and budget.keep < longest + budget.recent:
        yield (
            f"{where}: with overflow refuse, keep {budget.keep} must hold the longest prompt of {task} "
            f"({longest} tokens) and {newest}. Give keep at least {longest + budget.recent}, or choose overflow grow."
        )
    if isinstance(arm.policy, Replacer):
        free = min(arm.rule.kept(length) - arm.rule.protected(length) for length in lengths)
        if free < budget.interval:
            enough = budget.keep + budget.interval - free
            yield (
                f"{where}: {arm.policy.name} overwrites unprotected slots and needs at least {budget.interval} of them "
                f"(interval); keep {budget.keep} leaves {free}. Give keep at least {enough}."
            )


def needs_refusals(job: JobSpec, arm: Arm) -> Iterator[str]:
    """Scores over all layers at once, which no stage of a pipeline can see (contracts.md section 3)."""
    if arm.policy.needs.all_layers and job.resources.pp > 1:
        yield (
            f"{job.place('resources', 'pp')}: {arm.policy.name} scores all layers at once, which {job.resources.pp} "
            "pipeline stages cannot. Write pp: 1 and use tp instead, or leave the policy out."
        )


def budget_notes(arm: Arm, task: str, lengths: Sequence[int], max_tokens: int) -> Iterator[str]:
    """Prompts that do not fit keep, and budgets under which nothing is ever evicted."""
    if arm.rule is None:
        return
    budget, longest = arm.rule.budget, max(lengths)
    unfit = sum(length + budget.recent > budget.keep for length in lengths)
    if unfit:
        yield (
            f"{task}: {unfit} of {len(lengths)} prompts do not fit keep {budget.keep} beside {budget.recent} newest "
            f"tokens; overflow {arm.rule.overflow.value} applies."
        )
    if longest + max_tokens <= budget.keep + budget.interval:
        yield f"{task}: at keep {budget.keep} nothing is ever evicted, no row outgrows {longest + max_tokens} tokens."


def _protected(rule: Rule, task: str, shortest: int) -> str:
    match rule.protection:
        case Protection.PROMPT:
            return f"the shortest prompt of {task} ({shortest} tokens) and "
        case Protection.SINKS:
            return f"{rule.n_sink} sinks and "
        case Protection.NONE:
            return ""
