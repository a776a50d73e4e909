"""Running a challenge: the tuning split, the fit of the nulls, everything on both splits, the tax, the verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator import campaign, models
from orchestrator.backend import Backend
from orchestrator.challenge import design, verdict
from orchestrator.challenge.design import REFERENCE, Challenger, Setting
from orchestrator.challenge.fit import fit
from orchestrator.challenge.page import Tax, Verdict
from orchestrator.challenge.probes import passcode
from orchestrator.errors import UserError
from orchestrator.store.reader import Reader
from policies import registry
from policies.base import Needs, Scorer

# Query heads of one KV head where the checkpoint is not asked: what grouped-query models commonly have.
_GROUP = 4
_CACHE_BYTES = 2


class Stopped(Exception):
    """The run was stopped or left rows missing; the code is the command's exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the run ended with exit status {code}")
        self.code = code


def fight(
    challenger: Challenger,
    where: Setting,
    store: Path,
    connect: Callable[[], Backend],
    console: Console,
    probes: bool,
) -> Verdict:
    """Run what is missing and judge. Raises UserError for what cannot be run, Stopped for a run that did not finish.

    Same store, same question: nothing is made twice, and more problems or samples extend what is there.
    """
    name, policy = design.job_name(challenger, where), challenger.build()
    arms: dict[str, Any] = {
        verdict.FULL: "full",
        verdict.RANDOM: REFERENCE,
        verdict.CHALLENGER: challenger.arm(),
    }
    console.print(f"Tuning split: {where.tuning} problems, on which the nulls are fitted.")
    cells = _run(design.tuning_name(name), where, arms, where.tuning, (store, connect, console))
    reader = Reader(store)
    tuning, _ = verdict.splits(reader, cells[verdict.CHALLENGER], where.tuning)
    fitted = fit(verdict.traces(reader, cells[verdict.CHALLENGER], tuning), where.protection == "prompt")
    arms[verdict.MATCHED] = design.matched_arm(fitted.survival, fitted.overlap, where.interval)
    arms[verdict.PERMUTED] = design.permuted_arm(challenger)
    console.print(f"Both splits: {where.limit} problems in {len(arms)} arms.")
    cells = _run(name, where, arms, where.limit, (store, connect, console))
    reader = Reader(store)
    tuning, test = verdict.splits(reader, cells[verdict.CHALLENGER], where.tuning)
    sheet, note = passcode(challenger, where, console) if probes else (None, "Probes: left out; --probes runs them.")
    return Verdict(
        challenger=challenger,
        where=replace(where, samples=_samples(reader, cells[verdict.CHALLENGER])),
        tuning=verdict.outcomes(reader, cells, tuning),
        test=verdict.outcomes(reader, cells, test),
        fit=fitted,
        tax=tax(policy, where, _prompt(reader, cells[verdict.CHALLENGER])),
        probes=sheet,
        probes_note=note,
    )


def tax(policy: Scorer, where: Setting, prompt: int) -> Tax:
    """Cost of the challenger's events beside random's, and what it holds beside its cache."""
    model = models.resolve(where.model)
    extra = extra_bytes(policy.needs, model.n_layers, model.n_kv_heads, model.head_size, where.keep + where.interval)
    per_slot = 2 * model.n_layers * model.n_kv_heads * model.head_size * _CACHE_BYTES
    equal = where.keep + extra // per_slot
    # brings torch
    from policies import tax as measured  # noqa: PLC0415

    reference = registry.build(REFERENCE, {})
    assert isinstance(reference, Scorer)
    shape = measured.Shape(
        layers=model.n_layers,
        query_heads=_GROUP * model.n_kv_heads,
        heads=model.n_kv_heads,
        size=model.head_size,
        keep=where.keep,
        interval=where.interval,
        prompt=min(prompt, where.keep - where.interval - 1),
    )
    try:
        mine, theirs = measured.event_seconds([policy, reference], shape)
    except (RuntimeError, ValueError) as error:
        return Tax((), (), extra, equal, str(error).splitlines()[0])
    return Tax(mine, theirs, extra, equal)


def extra_bytes(needs: Needs, layers: int, heads: int, size: int, slots: int) -> int:
    """Bytes of one request that a policy's needs hold beside keys and values: query ring, mass and state, token ids."""
    pairs = layers * heads
    queries = needs.recent_queries * pairs * _GROUP * size * _CACHE_BYTES
    floats = (bool(needs.attention) + needs.slot_state) * 4 * pairs * slots
    return queries + floats + (8 * pairs * slots if needs.token_ids else 0)


def _run(
    name: str,
    where: Setting,
    arms: Mapping[str, Any],
    limit: int,
    how: tuple[Path, Callable[[], Backend], Console],
) -> dict[str, str]:
    """Run a job of these arms; the cell id of each."""
    store, connect, console = how
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "challenge.yaml"
        job.write_text(design.job_text(name, where, list(arms.values()), limit), encoding="utf-8")
        prepared = campaign.prepare(job, store)
        planned = [cell.cell_id for cell in prepared.plan.cells]
        if len(planned) != len(arms):
            raise UserError(
                f"{where.task}: {len(arms)} arms became {len(planned)} cells: the challenger is one of the others."
            )
        code = campaign.run(job, console, connect, store, campaign.Options(part=True))
    if code:
        raise Stopped(code)
    return dict(zip(arms, planned, strict=True))


def _prompt(reader: Reader, cell: str) -> int:
    return int(reader.rows(["n_prompt"], [cell])["n_prompt"].median())


def _samples(reader: Reader, cell: str) -> int:
    rows: Sequence[int] = reader.rows(["sample"], [cell])["sample"].unique().tolist()
    return max(1, len(rows))
