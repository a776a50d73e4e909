"""Frames as pages use them: analysis tables plus labels, order and completeness. Pure pandas; no statistics here.

ARM_COLUMNS and DIFFERENCE_COLUMNS are what pages and charts may rely on. Shares and differences are in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pandas as pd

from dashboard import theme

# Columns that every labelled frame has, one row per cell.
LABEL_COLUMNS = ("cell_id", "panel", "panel_title", "model", "task", "arm", "policy", "rule", "budget")
ARM_COLUMNS = (
    *LABEL_COLUMNS,
    *("protection", "keep", "interval", "accuracy", "low", "high", "half_width", "problems", "samples", "n"),
    *("rows", "graded", "planned", "planned_problems", "done", "complete", "invalid"),
    *("wrong", "truncated", "no_answer", "error"),
)
DIFFERENCE_COLUMNS = (
    *LABEL_COLUMNS,
    *("at_budget", "reference", "reference_id", "difference", "low", "high", "verdict", "reason"),
    *("wins", "losses", "ties", "counts", "p_sign", "p_holm", "family_size", "problems", "samples", "n"),
    *("done", "complete"),
)

RULES: Mapping[str | None, str] = {
    "prompt": "prompt protected",
    "sinks": "sinks protected",
    "none": "unprotected",
    None: "never evicts",
}


class Rule(StrEnum):
    """Which arm of the reference policy each arm is compared with; the two are never mixed in one table."""

    AS_RUN = "as_run"
    SAME = "same_rule"

    @property
    def label(self) -> str:
        """Name of the choice."""
        return {Rule.AS_RUN: "As run", Rule.SAME: "Same rule for both"}[self]

    @property
    def explanation(self) -> str:
        """What the choice compares."""
        return {
            Rule.AS_RUN: "every arm against the prompt-protected reference",
            Rule.SAME: "every arm against the reference under the arm's own rule",
        }[self]


class Show(StrEnum):
    """Which problems a grid lists; the values are what people read and what stands in the address."""

    ALL = "All"
    DIFFERING = "Arms differ"
    UNSOLVED = "Not solved by all"


@dataclass(frozen=True, slots=True)
class Panel:
    """One model and task under one sampling setting: what arms are compared within."""

    key: str
    model: str
    task: str

    @property
    def title(self) -> str:
        """`reasoner · reasoner_w`."""
        return f"{self.model} · {self.task}"


def short_model(path: str) -> str:
    """Last part of a model's path, without the marker of embedded models."""
    return path.rstrip("/").rsplit("/", 1)[-1].removeprefix("embedded:")


def budget_label(keep: float | None, interval: float | None) -> str:
    """`K 264 · r 16`; empty for an arm without a budget."""
    return "" if pd.isna(keep) or pd.isna(interval) else f"K {keep:.0f} · r {interval:.0f}"


def labelled(cells: pd.DataFrame) -> pd.DataFrame:
    """Add the label columns to a frame with the cell columns of the store; rows in the fixed order of arms.

    Needs cell_id, comparison_id, model, task, policy, policy_params, protection, keep, interval. Arms that would share
    a label within a panel and budget get their parameters, and then the cell id, added.
    """
    out = cells.copy()
    out["panel"] = out["comparison_id"]
    out["model_path"] = out["model"]
    out["model"] = out["model"].map(short_model)
    out["budget"] = [budget_label(k, r) for k, r in zip(out["keep"], out["interval"], strict=True)]
    protection = out["protection"].astype(object).where(out["protection"].notna(), None)
    out["rule"] = [RULES.get(value, str(value)) for value in protection]
    out["arm"] = [
        policy if rule == RULES[None] else f"{policy} · {rule}"
        for policy, rule in zip(out["policy"], out["rule"], strict=True)
    ]
    for more in ("policy_params", "cell_id"):
        shared = out.duplicated(["panel", "budget", "arm"], keep=False)
        out.loc[shared, "arm"] = out.loc[shared, "arm"] + " · " + out.loc[shared, more].astype(str)
    out["task"] = _task_labels(out)
    out["panel_title"] = out["model"] + " · " + out["task"]
    rank = {rule: place for place, rule in enumerate(RULES.values())}
    order = [
        (row["model"], row["task"], theme.policy_key(row["policy"]), rank.get(row["rule"], 9), row["keep"], row["arm"])
        for row in out.fillna({"keep": 0}).to_dict("records")
    ]
    return out.iloc[sorted(range(len(out)), key=order.__getitem__)].reset_index(drop=True)


def arms(table: pd.DataFrame) -> pd.DataFrame:
    """Labelled arms (ARM_COLUMNS) of analysis.arms_table; planned cells without rows have NaN for accuracy."""
    out = labelled(table)
    out["half_width"] = (out["high"] - out["low"]) / 2
    numbers = ["problems", "samples", "rows", "planned_problems", "planned_samples"]
    # a cell that no campaign planned cannot be unfinished
    out["complete"] = [bool(value) if pd.notna(value) else True for value in out["complete"]]
    out["done"] = out["done"].fillna(1.0)
    out[numbers] = out[numbers].astype(float).fillna(0).astype(int)
    out["planned"] = out["planned_problems"] * out["planned_samples"]
    out["n"] = [theme.sample_size(p, s) for p, s in zip(out["problems"], out["samples"], strict=True)]
    return out


def differences(table: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Labelled differences (DIFFERENCE_COLUMNS) of analysis.differences_table; complete only where both arms are."""
    if table.empty:
        return pd.DataFrame(columns=list(DIFFERENCE_COLUMNS)).astype({"complete": bool})
    out = joined(facts_only(table), arms)
    whole = arms.set_index("cell_id")
    out["at_budget"] = [budget_label(k, r) for k, r in zip(out["at_keep"], out["at_interval"], strict=True)]
    out["reference"] = out["reference_id"].map(whole["arm"])
    out["complete"] = ~out["provisional"].astype(bool)
    least = pd.concat([out[name].map(whole["done"]) for name in ("cell_id", "reference_id")], axis=1).min(axis=1)
    out["done"] = [f"{100 * share:.0f} % done" for share in least]
    out["counts"] = [
        f"{won} / {lost} / {tied}" for won, lost, tied in zip(out["wins"], out["losses"], out["ties"], strict=True)
    ]
    each = out["samples"].astype(float) / out["problems"].astype(float).where(out["problems"] > 0, 1)
    out["n"] = [theme.sample_size(p, s) for p, s in zip(out["problems"], each, strict=True)]
    return out


def sweep(table: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Labelled curves of analysis_sweep.sweep_table with `complete` and `n`."""
    out = joined(facts_only(table), arms)
    out["complete"] = ~out["provisional"].astype("boolean").fillna(False).astype(bool)
    counts = zip(out["problems"].fillna(0), out["samples"].fillna(0), strict=True)
    out["n"] = [theme.sample_size(int(problems), float(samples)) for problems, samples in counts]
    return out.astype({"keep": float})


def protection(table: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Labelled rows of analysis_protection.protection_table with the other arm's rule."""
    out = joined(facts_only(table), arms)
    out["bare_rule"] = [RULES.get(rule, str(rule)) for rule in out["bare_protection"]]
    out["provisional"] = out["provisional"].astype("boolean").fillna(False).astype(bool)
    return out


def _task_labels(cells: pd.DataFrame) -> pd.Series:
    """Task names; where one model has a task under several settings, the comparison's first digits are added."""
    several = cells.groupby(["model", "task"])["panel"].transform("nunique") > 1
    return cells["task"].where(~several, cells["task"] + " " + cells["panel"].str[:6])


def panels(frame: pd.DataFrame) -> list[Panel]:
    """Panels present in a labelled frame, by model and task."""
    distinct = frame[["panel", "model", "task"]].drop_duplicates().sort_values(["model", "task"])
    return [Panel(*row) for row in distinct.itertuples(index=False)]


def of_panel(frame: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """Rows of one panel."""
    return frame[frame["panel"] == panel.key].reset_index(drop=True)


def arm_order(frame: pd.DataFrame) -> list[str]:
    """Arm labels of a labelled frame in the fixed order, each once."""
    rank = {rule: place for place, rule in enumerate(RULES.values())}
    rows = frame[["arm", "policy", "rule"]].drop_duplicates().to_dict("records")
    rows.sort(key=lambda row: (theme.policy_key(row["policy"]), rank.get(row["rule"], 9), row["arm"]))
    return list(dict.fromkeys(str(row["arm"]) for row in rows))


def by_arm(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Arm labels in the fixed order, each with its rows."""
    for label in arm_order(frame):
        yield label, frame[frame["arm"] == label]


def short_label(label: str, arm: pd.Series) -> str:
    """An arm's label without its protection rule, for tables that show the rule as a second line."""
    return label.replace(f" · {arm['rule']}", "", 1)


def budgets(frame: pd.DataFrame) -> list[str]:
    """Budgets in the frame, smallest keep first; arms without one do not count."""
    known = frame[frame["budget"] != ""].sort_values(["keep", "interval"])
    return list(dict.fromkeys(known["budget"]))


def reference_arm(cells: pd.DataFrame, reference: str) -> str:
    """Label of the prompt-protected arm of the reference policy, or its first arm; empty when it has none."""
    mine = cells[cells["policy"] == reference]
    protected = mine[mine["rule"] == RULES["prompt"]]
    found = protected if not protected.empty else mine
    return "" if found.empty else str(found.iloc[0]["arm"])


def row_kind(cells: pd.DataFrame, references: Collection[str]) -> str:
    """Style of the table row of one arm's cells: the full cache is set apart, references are tinted."""
    if (cells["policy"] == "full").all():
        return "full"
    return "reference" if cells["cell_id"].isin(list(references)).any() else ""


def verdicts(differences: pd.DataFrame) -> dict[str, str]:
    """Verdict by cell id, finished comparisons only."""
    finished = differences[differences["complete"]]
    return dict(zip(finished["cell_id"], finished["verdict"], strict=True))


def verdict_counts(contest: pd.DataFrame) -> dict[str, int]:
    """Number of finished comparisons by verdict, and of unfinished ones."""
    finished = contest[contest["complete"]]["verdict"]
    counts = {name: int((finished == name).sum()) for name in theme.VERDICTS}
    return {**counts, "unfinished": int((~contest["complete"].astype(bool)).sum())}


def no_comparison(arms: pd.DataFrame, reference: str) -> str:
    """Why a view of differences is empty, and what to do."""
    present = ", ".join(sorted(set(arms["policy"]), key=theme.policy_key)) or "none"
    return (
        f"No comparison for this choice: no other arm shares model, task, budget and problems with '{reference}'. "
        f"Policies here: {present}. Choose another reference, budget or protection rule, or add arms to the job."
    )


@dataclass(frozen=True)
class ProblemGrid:
    """A window of problems (rows, hardest first) x arms.

    text   glyphs of each cell; share: the share right behind it (NaN = no graded row); total: problems before windowing
    """

    text: pd.DataFrame
    share: pd.DataFrame
    total: int


def problem_order(outcomes: pd.DataFrame) -> list[str]:
    """Problem ids in the task's own order."""
    return list(dict.fromkeys(outcomes.sort_values("problem_index", kind="stable")["problem_id"]))


def problem_grid(
    outcomes: pd.DataFrame, arms: pd.DataFrame, show: Show = Show.ALL, window: slice = slice(None)
) -> ProblemGrid:
    """Grid of one panel's outcomes, hardest problem first.

    outcomes: cell_id, problem_id, problem_index, samples, graded and a count per name of theme.OUTCOMES. Arms differ
    where their shares right do. window: places of the problems wanted; glyphs are made for these alone.
    """
    names = dict(zip(arms["cell_id"], arms["arm"], strict=True))
    rows = outcomes.assign(arm=outcomes["cell_id"].map(names))
    graded = rows["graded"].astype(float)
    rows["share"] = rows["correct"].astype(float) / graded.where(graded > 0)
    columns = [arm for arm in arm_order(arms) if arm in set(rows["arm"])]
    share = rows.pivot(index="problem_id", columns="arm", values="share")
    share = share.reindex(index=problem_order(rows), columns=columns)
    if show is Show.DIFFERING:
        share = share[share.max(axis=1) > share.min(axis=1)]
    elif show is Show.UNSOLVED:
        share = share[~(share.min(axis=1) >= 1)]
    # stable, so that equally hard problems stay in the task's order
    hardest = share.mean(axis=1).sort_values(kind="stable", na_position="first").index
    shown = share.loc[hardest[window]]
    part = rows[rows["problem_id"].isin(shown.index)]
    text = part.assign(text=[_outcome_text(row) for row in part.to_dict("records")])
    grid = text.pivot(index="problem_id", columns="arm", values="text")
    return ProblemGrid(grid.reindex(index=shown.index, columns=columns).fillna(""), shown, len(share))


def _outcome_text(row: Mapping[Any, Any]) -> str:
    """`●` for one sample; `3/4 ● ✕` for several: right of all, then the glyphs that occur."""
    glyphs = [mark.glyph for name, mark in theme.OUTCOMES.items() if row[name]]
    return glyphs[0] if row["samples"] == 1 else f"{row['correct']}/{row['samples']} {' '.join(glyphs)}"


def facts_only(table: pd.DataFrame) -> pd.DataFrame:
    """An analysis table without the columns that labels bring."""
    return table.drop(columns=[name for name in LABEL_COLUMNS if name != "cell_id"], errors="ignore")


def joined(facts: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Per-cell facts with the labels of the chosen cells, in their order; cells without facts are left out."""
    labels = cells[list(LABEL_COLUMNS)]
    return labels.merge(facts, on="cell_id", how="inner", validate="1:m").reset_index(drop=True)


def cell_of(cells: pd.DataFrame, arm: str) -> str:
    """Cell id of an arm label; empty when it is not there."""
    found = cells[cells["arm"] == arm]["cell_id"]
    return "" if found.empty else str(found.iloc[0])
