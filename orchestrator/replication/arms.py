"""Which arms a published number is about, and which cells of a store are these arms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.replication.names import ALIASES, CONTENDERS, METHODS, MODELS, REFERENCE, TASKS, Method, same_model

Cell = Mapping[str, Any]

# The main grid's keep per task; budgets are total: prompt and the newest tokens inside keep.
GRID_KEEP = {"MATH500": 1024, "GPQA-D": 2048, "AIME": 4096, "HMMT": 4096, "LiveCodeBench": 3072}
GRID_MODELS = ("Qwen3-4B", "Phi-4-reasoning", "Qwen3-32B")

# Differences between two arms, as (other arm's method, its protection): the number is arm - other, times the sign.
_AGAINST_RANDOM = {"delta_vs_RA_points": 1, "lead_over_RA_points": 1, "deficit_vs_RA_points": -1}
ONE_ARM = ("accuracy", "pass@1", "mean_generated_ktokens", "mean_generated_tokens", "run_sd_points")
AVERAGE_TASK = "Avg5"
SURVIVAL = "survival_per_head_age_1-2k"
COUNTED = {"n_baseline_cells_sig_behind_RA": "behind", "n_baseline_cells_sig_ahead_of_RA": "ahead"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An arm as published: names of the publication. protection: yes | no | n/a."""

    model: str
    task: str
    method: str
    protection: str
    keep: int | None

    @property
    def ours(self) -> Method:
        """The method under our names."""
        return METHODS[self.method]

    @property
    def label(self) -> str:
        """`Qwen/Qwen3-4B math500 snapkv K1024 none`."""
        budget = "" if self.keep is None else f" K{self.keep} {self.ours.protections(self.protection)[0]}"
        params = ",".join(f"{name}={value}" for name, value in self.ours.params.items())
        policy = self.ours.policies[0] + (f"({params})" if params else "")
        return f"{MODELS[self.model]} {TASKS[self.task].name} {policy}{budget}"

    def is_cell(self, cell: Cell) -> bool:
        """Whether a cell of a store is this arm; mini sets are other problems and never are."""
        params = json.loads(cell["policy_params"])
        return (
            same_model(self.model, str(cell["model"]))
            and cell["task"] == TASKS[self.task].name
            and not str(cell["task_revision"]).startswith("mini-")
            and cell["policy"] in self.ours.policies
            and all(params.get(name) == value for name, value in self.ours.params.items())
            and cell["keep"] == self.keep
            and cell["protection"] in self.ours.protections(self.protection)
        )

    def find(self, cells: Iterable[Cell]) -> Cell | None:
        """The cell with most answers that is this arm; the preferred policy and protection first among equals."""
        found = [cell for cell in cells if self.is_cell(cell)]
        policies, protections = self.ours.policies, self.ours.protections(self.protection)
        found.sort(
            key=lambda c: (-c["rows"], policies.index(c["policy"]), protections.index(c["protection"]), c["cell_id"])
        )
        return found[0] if found else None


def wanted(row: Mapping[str, Any]) -> tuple[Sequence[Wanted], int]:
    """Arms of a published number, and the sign of a difference between two; no arms for what is not about arms."""
    arm = _arm(row)
    metric = row["metric"]
    if metric in COUNTED:
        return grid(GRID_MODELS), 1
    if row["task"] == AVERAGE_TASK and row["policy"] in METHODS and row["model"] in MODELS:
        return _five_tasks(row), 1
    if metric == SURVIVAL and row["policy"] in METHODS and row["keep"] is not None:
        return (Wanted(row["model"], "MATH500", row["policy"], _own_rule(row["policy"]), row["keep"]),), 1
    if arm is None:
        return (), 1
    if metric in ONE_ARM and row["protect_prompt"] != "gain":
        return (arm,), 1
    if metric == "gain_points":
        return (replace(arm, protection="yes"), replace(arm, protection="no")), 1
    if metric in _AGAINST_RANDOM:
        return (arm, replace(arm, method=REFERENCE, protection="yes")), _AGAINST_RANDOM[metric]
    return (), 1


def grid(models: Iterable[str]) -> list[Wanted]:
    """The main grid as published: random and full at each task, and each method under its own protection."""
    cells = [(model, task, keep) for model in models for task, keep in GRID_KEEP.items()]
    return [
        Wanted(model, task, method, _own_rule(method), keep)
        for model, task, keep in cells
        for method in (REFERENCE, *CONTENDERS)
    ]


def _own_rule(method: str) -> str:
    """The protection under which the main grid runs a method."""
    return "no" if method in ("SnapKV", "R-KV", "VaSE") else "yes"


def _five_tasks(row: Mapping[str, Any]) -> list[Wanted]:
    full = row["policy"] == "Full"
    return [
        Wanted(row["model"], task, row["policy"], row["protect_prompt"], None if full else keep)
        for task, keep in GRID_KEEP.items()
    ]


def _arm(row: Mapping[str, Any]) -> Wanted | None:
    model, task, method = row["model"], row["task"], ALIASES.get(row["policy"], row["policy"])
    if model not in MODELS or task not in TASKS or method not in METHODS:
        return None
    if method != "Full" and row["keep"] is None:
        return None
    return Wanted(model, task, method, row["protect_prompt"], None if method == "Full" else row["keep"])
