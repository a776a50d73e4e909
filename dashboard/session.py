"""What a page works with: the store at one generation, and the choices that hold for all pages.

Choices live in the URL (`bind="query-params"`), so a copied address shows the same view.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard import data, frames, guard, theme
from orchestrator.errors import UserError, closest

_KEY = "evictbench_session"
FULL = "full"


@dataclass(frozen=True)
class Session:
    """Store, its generation, and the arms that pass the choices of the sidebar (columns: frames.ARM_COLUMNS).

    show_texts   False on a shared dashboard: no prompt and no generation leaves the store
    all_budgets  like arms, but of every budget: for pages whose axis it is
    most_charts  models x tasks that a page draws; a chart costs a tenth of a second, tables show all
    equivalence  whether equivalence within the job's margin is tested too
    """

    store: Path
    stamp: str
    show_texts: bool
    arms: pd.DataFrame
    all_budgets: pd.DataFrame
    reference: str
    rule: frames.Rule
    equivalence: bool = False
    most_charts: int = 8

    @cached_property
    def key(self) -> Hashable:
        """What a page made of this session depends on."""
        cells = (tuple(self.arms["cell_id"]), tuple(self.all_budgets["cell_id"]))
        choices = (self.reference, self.rule, self.equivalence, self.speed_reference, self.most_charts)
        return (self.store, self.stamp, *cells, *choices)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """Paired differences of the chosen arms to the reference (columns: frames.DIFFERENCE_COLUMNS)."""
        table = data.differences(self.store, self.stamp, self.reference, self.rule, self.equivalence)
        shown = table["cell_id"].isin(self.arms["cell_id"]) & table["reference_id"].isin(self.arms["cell_id"])
        return table[shown].reset_index(drop=True)

    @cached_property
    def sweep(self) -> pd.DataFrame:
        """Curves over keep of the chosen models and tasks: labels, analysis_columns.SWEEP, complete, n."""
        table = data.sweep(self.store, self.stamp, self.reference, self.rule, self.equivalence)
        return table[table["cell_id"].isin(self.all_budgets["cell_id"])].reset_index(drop=True)

    @cached_property
    def longer(self) -> pd.DataFrame:
        """Paired differences of generated tokens of the chosen arms (analysis_columns.LENGTHS), one row per arm."""
        table = data.longer(self.store, self.stamp, self.reference, self.rule)
        return table[table["reference_id"].isin(self.arms["cell_id"])].drop_duplicates("cell_id")

    @cached_property
    def protection(self) -> pd.DataFrame:
        """Policies with and without protection: labels, analysis_columns.PROTECTION, bare_rule."""
        table = data.protection(self.store, self.stamp, self.reference)
        return table[table["cell_id"].isin(self.all_budgets["cell_id"])].reset_index(drop=True)

    @property
    def family(self) -> str:
        """Which comparisons share a correction, as the job declares: model, task or all."""
        return data.question(self.store, self.reference, self.rule, self.equivalence).family

    @property
    def speed_reference(self) -> str:
        """Policy that tokens per second are compared with."""
        return str(st.session_state.get("speed", FULL))

    @cached_property
    def order(self) -> list[str]:
        """Labels of the arms in their fixed order."""
        return frames.arm_order(self.arms)

    @cached_property
    def references(self) -> frozenset[str]:
        """Cell ids that the chosen arms are compared with."""
        return frozenset(self.differences["reference_id"])

    @cached_property
    def reference_text(self) -> str:
        """The reference as a sentence part, with its protection rule."""
        if self.rule is frames.Rule.SAME:
            return f"{self.reference} under the arm's own protection rule"
        names = set(self.differences["reference"])
        return names.pop().replace(" · ", ", ") if len(names) == 1 else self.reference


def start(store: Path, show_texts: bool) -> None:
    """Check the store, draw the sidebar and keep the session for the page that runs next. Raises UserError."""
    guard.check(store)
    stamp = data.stamp(store)
    arms = data.arms(store, stamp)
    st.session_state[_KEY] = _choose(store, stamp, show_texts, arms)


def current() -> Session:
    """The session that `start` left for this run."""
    session: Session = st.session_state[_KEY]
    return session


def whole(store: Path, reference: str | None = None, rule: frames.Rule = frames.Rule.AS_RUN) -> Session:
    """A session without a sidebar: everything in the store, as the jobs declare it. Raises UserError."""
    guard.check(store)
    stamp = data.stamp(store)
    arms = data.arms(store, stamp)
    policies = contenders(arms)
    if reference is not None and reference not in policies:
        raise UserError(
            f"reference '{reference}' has no cell in {store}; policies: {', '.join(policies)}."
            f"{closest(reference, policies)}"
        )
    chosen = reference or _default(store, stamp, policies)
    return Session(store, stamp, False, arms, arms, chosen, rule, most_charts=len(arms))


def contenders(arms: pd.DataFrame) -> list[str]:
    """Policies that can be a reference, in their fixed order; the full cache where nothing else was run."""
    return sorted(set(arms["policy"]) - {FULL}, key=theme.policy_key) or [FULL]


def _default(store: Path, stamp: str, policies: list[str]) -> str:
    declared = data.declared_reference(store, stamp)
    return declared if declared in policies else policies[0]


def _choose(store: Path, stamp: str, show_texts: bool, arms: pd.DataFrame) -> Session:
    with st.sidebar:
        policies = contenders(arms)
        declared = data.declared_reference(store, stamp)
        reference = st.selectbox(
            "Reference policy", policies, index=policies.index(_default(store, stamp, policies)), key="reference",
            bind="query-params",
            help="Every other arm is compared with this one: same problems, same seeds, same budget.",
        )  # fmt: skip
        if declared not in policies:
            st.warning(f"The job declares '{declared}' as reference; it has no arm here.", icon=":material/info:")
        rule = st.radio(
            "Protection", list(frames.Rule), key="rule", bind="query-params", format_func=lambda rule: rule.label,
            captions=[rule.explanation for rule in frames.Rule],
        )  # fmt: skip
        margin = data.margin_points(store, stamp)
        equivalence = st.toggle(
            f"Test equivalence (±{margin:g} points)", key="equivalence", bind="query-params",
            help="Two one-sided tests within the margin that the job declares. Off: nothing is called equivalent.",
        )  # fmt: skip
        every, chosen = _filter(arms)
        unreadable = data.corrupt(store, stamp)
        if unreadable:
            more = f" and {len(unreadable) - 1:,} more" if len(unreadable) > 1 else ""
            st.warning(f"{unreadable[0]}{more} See Runs.", icon=":material/broken_image:")
        st.caption(f"Store `{store.resolve().name}` · reads only, refreshed as rows arrive.")
    return Session(
        store, stamp, show_texts, chosen, every, reference or policies[0], rule or frames.Rule.AS_RUN, equivalence
    )


def _filter(arms: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Model and task choices, and then a budget besides; a choice among one is not offered."""
    budgets = frames.budgets(arms)
    budget = st.selectbox("Budget", budgets, key="budget", bind="query-params") if len(budgets) > 1 else None
    for column in ("model", "task"):
        names = sorted(arms[column].unique())
        if len(names) > 1:
            kept = st.multiselect(column.capitalize(), names, key=column, bind="query-params", placeholder="All")
            arms = arms[arms[column].isin(kept or names)]
    every = arms.reset_index(drop=True)
    if budget is None:
        return every, every
    return every, arms[(arms["budget"] == budget) | (arms["policy"] == FULL)].reset_index(drop=True)
