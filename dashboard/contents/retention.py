"""Retention: what survives in the cache?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dashboard import data, frames, tables, theme
from dashboard.charts import retention
from dashboard.contents.base import Block, Charts, Content, Note, Table
from dashboard.session import Session

EXPORTED = ["model", "task", "policy", "rule", "budget", "age", "age_from", "held", "rows", "cell_id"]
QUESTION = (
    "What survives? Share of the tokens of an age that a head still holds when the generation ends, mean over layers, "
    "heads and rows. The prompt is among the oldest tokens."
)


def line(shares: Sequence[float], rows: int) -> list[tables.Cell]:
    """One arm's shares by age, and the rows that they are means of."""
    cells = [tables.MISSING if pd.isna(share) else tables.Cell(theme.percent(share)) for share in shares]
    return [*cells, tables.Cell(theme.count(rows))]


def build(state: Session, panel: frames.Panel) -> Content:
    """Heat map of the share still held by age, and the same as lines beside the law of a uniform draw."""
    cells = frames.of_panel(state.arms, panel)
    held = frames.joined(data.retention(state.store, state.stamp, tuple(cells["cell_id"])), cells)
    if held.empty:
        return Content("Retention", QUESTION, [Note(f"No row with an eviction trace for {panel.title} yet.")])
    if held.loc[held["budget"] != "", "budget"].nunique() > 1:
        named = zip(held["arm"], held["budget"], strict=True)
        held["arm"] = [f"{arm} · {budget}" if budget else arm for arm, budget in named]
    order = list(dict.fromkeys(held["arm"]))
    ages = list(dict.fromkeys(held.sort_values("age_from")["age"]))
    reference = frames.reference_arm(cells, state.reference)
    law = data.retention_law(state.store, state.stamp, frames.cell_of(cells, reference))
    caption = (
        "Dashed: what a uniform draw keeps on average at this budget, ((K′−r−prot)/(K′−prot))ⁿ after n events, with "
        f"the prompt of the reference arm ({reference})."
    )
    table = held.pivot_table(index="arm", columns="age", values="held", sort=False)
    shares = table.reindex(index=order, columns=ages).to_dict("index")
    rows = held.groupby("arm")["rows"].first()
    blocks: list[Block] = [
        Charts([(f"Share of tokens still held by age: {panel.title}",
                 retention.heat_map(held, order, ages, panel.title))]),
        Charts([("Share held against age, with the law", retention.lines(held, law))], caption),
        Table(
            tables.render("Arm", [*(("age, tokens", age) for age in ages), ("", "rows")],
                          [tables.Row(arm, line([shares[arm][age] for age in ages], rows[arm])) for arm in order]),
            held[EXPORTED], "retention", note="Percent of the tokens of an age that a head still holds.",
        ),
    ]  # fmt: skip
    return Content("Retention", QUESTION, blocks)
