"""What a page works with: the store at one generation, and the choices that hold for all pages.

Choices live in the URL (`bind="query-params"`), so a copied address shows the same view.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard import data, frames, guard, theme

_KEY = "evictbench_session"
DEFAULT_REFERENCE = "random"


@dataclass(frozen=True)
class Session:
    """Store, its generation, and the arms that pass the choices of the sidebar (columns: frames.ARM_COLUMNS).

    show_texts  False on a shared dashboard: no prompt and no generation leaves the store
    """

    store: Path
    stamp: str
    show_texts: bool
    arms: pd.DataFrame
    reference: str
    rule: frames.Rule

    @property
    def differences(self) -> pd.DataFrame:
        """Paired differences of the chosen arms to the reference (columns: frames.DIFFERENCE_COLUMNS)."""
        table = data.differences(self.store, self.stamp, self.reference, self.rule)
        shown = table["cell_id"].isin(self.arms["cell_id"]) & table["reference_id"].isin(self.arms["cell_id"])
        return table[shown].reset_index(drop=True)

    @property
    def order(self) -> list[str]:
        """Labels of the arms in their fixed order."""
        return frames.arm_order(self.arms)

    @property
    def references(self) -> frozenset[str]:
        """Cell ids that the chosen arms are compared with."""
        return frozenset(self.differences["reference_id"])

    @property
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


def _choose(store: Path, stamp: str, show_texts: bool, arms: pd.DataFrame) -> Session:
    with st.sidebar:
        policies = sorted(set(arms["policy"]) - {"full"}, key=theme.policy_key)
        default = policies.index(DEFAULT_REFERENCE) if DEFAULT_REFERENCE in policies else 0
        reference = st.selectbox(
            "Reference policy", policies, index=default, key="reference", bind="query-params",
            help="Every other arm is compared with this one: same problems, same seeds, same budget.",
        )  # fmt: skip
        rule = st.radio(
            "Protection", list(frames.Rule), key="rule", bind="query-params", format_func=lambda rule: rule.label,
            captions=[rule.explanation for rule in frames.Rule],
        )  # fmt: skip
        chosen = _filter(arms)
        unreadable = data.corrupt(store, stamp)
        if unreadable:
            more = f" and {len(unreadable) - 1:,} more" if len(unreadable) > 1 else ""
            st.warning(f"{unreadable[0]}{more} See Runs.", icon=":material/broken_image:")
        st.caption(f"Store `{store.resolve().name}` · reads only, refreshed as rows arrive.")
    return Session(store, stamp, show_texts, chosen, reference or DEFAULT_REFERENCE, rule or frames.Rule.AS_RUN)


def _filter(arms: pd.DataFrame) -> pd.DataFrame:
    """Budget, model and task choices; a choice among one is not offered."""
    budgets = frames.budgets(arms)
    if len(budgets) > 1:
        budget = st.selectbox("Budget", budgets, key="budget", bind="query-params")
        arms = arms[(arms["budget"] == budget) | (arms["policy"] == "full")]
    for column in ("model", "task"):
        names = sorted(arms[column].unique())
        if len(names) > 1:
            kept = st.multiselect(column.capitalize(), names, key=column, bind="query-params", placeholder="All")
            arms = arms[arms[column].isin(kept or names)]
    return arms.reset_index(drop=True)
