"""Retention: what survives in the cache?"""

from __future__ import annotations

from dashboard import data, frames
from dashboard.charts import retention
from dashboard.contents.base import Block, Charts, Content, Note
from dashboard.session import Session

QUESTION = (
    "What survives? Share of the tokens of an age that a head still holds when the generation ends, mean over layers, "
    "heads and rows. The prompt is among the oldest tokens."
)


def build(state: Session, panel: frames.Panel) -> Content:
    """Heat map of the share still held by age, and the same as lines beside the law of a uniform draw."""
    cells = frames.of_panel(state.arms, panel)
    held = frames.joined(data.retention(state.store, state.stamp, tuple(cells["cell_id"])), cells)
    if held.empty:
        return Content("Retention", QUESTION, [Note(f"No row with an eviction trace for {panel.title} yet.")])
    order = [arm for arm in state.order if arm in set(held["arm"])]
    ages = list(dict.fromkeys(held.sort_values("age_from")["age"]))
    reference = frames.reference_arm(cells, state.reference)
    law = data.retention_law(state.store, state.stamp, frames.cell_of(cells, reference))
    caption = (
        "Dashed: what a uniform draw keeps on average at this budget, ((K′−r−prot)/(K′−prot))ⁿ after n events, with "
        f"the prompt of the reference arm ({reference})."
    )
    blocks: list[Block] = [
        Charts([(f"Share of tokens still held by age: {panel.title}",
                 retention.heat_map(held, order, ages, panel.title))]),
        Charts([("Share held against age, with the law", retention.lines(held, law))], caption),
    ]  # fmt: skip
    return Content("Retention", QUESTION, blocks)
