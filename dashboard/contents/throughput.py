"""Throughput: how fast is every arm, under stated conditions and never from accuracy runs?"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dashboard import data, frames, tables, theme
from dashboard.charts import throughput
from dashboard.contents.base import Block, Charts, Content, Heading, Note, Table
from dashboard.session import Session
from orchestrator.stats.throughput import ratios
from orchestrator.store.throughput import CONDITIONS

QUESTION = (
    "How fast? Tokens per second of all requests together; ratios are formed within a round, in which every arm runs "
    "once. Accuracy runs never enter here."
)
MISSING = "No throughput was measured in this store. Measure it with: evictbench bench throughput JOB"
COLUMNS = ["Tokens/s", "Range", "Ratio", "95 % interval", "Rounds", "Excluded"]


def build(state: Session) -> Content:
    """One chart and one table per set of conditions, with the conditions beside them."""
    found = data.throughput(state.store, state.stamp)
    blocks: list[Block] = [Note(text) for text in found.skipped]
    measured = labelled(found.rows)
    if measured.empty:
        return Content("Throughput", QUESTION, [*blocks, Note(MISSING)])
    for place, (_, part) in enumerate(measured.groupby(list(CONDITIONS), dropna=False, sort=False)):
        blocks += conditions_blocks(part, state.speed_reference, place)
    return Content("Throughput", QUESTION, blocks)


@dataclass(frozen=True, slots=True)
class Fastest:
    """The largest ratio measured: `2.23×`, and of which arm to which under which conditions."""

    ratio: str
    explanation: str


def fastest(state: Session) -> Fastest | None:
    """The arm with the largest ratio of tokens/s to the speed reference, over all conditions; None without any."""
    measured = labelled(data.throughput(state.store, state.stamp).rows)
    best: tuple[float, Fastest] | None = None
    for _, part in measured.groupby(list(CONDITIONS), dropna=False, sort=False):
        table = compared(part, state.speed_reference) if not part[~part["warm_up"]].empty else pd.DataFrame()
        for _, row in table.iterrows():
            if row["arm"] != row["reference"] and pd.notna(row["ratio"]) and (best is None or row["ratio"] > best[0]):
                text = f"{row['arm']} against {row['reference']}: {conditions(part)}. See Throughput."
                best = (float(row["ratio"]), Fastest(row["ratio_text"], text))
    return best[1] if best else None


def conditions(part: pd.DataFrame) -> str:
    """`reasoner on cpu, 64 requests at once`."""
    first = part.iloc[0]
    return f"{frames.short_model(first['model'])} on {first['gpu']}, {first['concurrency']} requests at once"


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Measurements with an arm label that carries policy, rule and budget."""
    rules = [frames.RULES.get(rule if pd.notna(rule) else None, str(rule)) for rule in rows["protection"]]
    labels = [
        " · ".join(part for part in (policy, rule, frames.budget_label(keep, interval)) if part)
        for policy, rule, keep, interval in zip(rows["policy"], rules, rows["keep"], rows["interval"], strict=True)
    ]
    return rows.assign(arm=labels)


def compared(part: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Ratios of the arms of one set of conditions to the first arm of the reference policy, with policy and labels."""
    policies = part.drop_duplicates("arm").set_index("arm")["policy"]
    mine = [arm for arm, policy in policies.items() if policy == reference]
    base = str(mine[0] if mine else policies.index[0])
    table = ratios(part, base)
    table["policy"] = table["arm"].map(policies)
    table["ratio_text"] = [f"{ratio:.2f}×" if pd.notna(ratio) else "–" for ratio in table["ratio"]]
    table["label"] = [
        f"{theme.count(speed)} ({ratio})"
        for speed, ratio in zip(table["tokens_per_second"], table["ratio_text"], strict=True)
    ]
    return table


def conditions_blocks(part: pd.DataFrame, reference: str, place: int) -> list[Block]:
    """Heading, chart, ratios and conditions of one set of conditions."""
    first = part.iloc[0]
    title = conditions(part)
    if part[~part["warm_up"]].empty:
        return [Heading(title), Note("Only warm-up rounds were measured here.")]
    table = compared(part, reference)
    order = sorted(table["arm"], key=lambda arm: (theme.policy_key(arm.split(" · ")[0]), arm))
    base = str(table.iloc[0]["reference"])
    rows = [
        tables.Row(str(row["arm"]), cells(row), "reference" if row["arm"] == base else "", row["reason"] or "")
        for _, row in table.set_index("arm", drop=False).loc[order].iterrows()
    ]
    shown = {name: first[name] for name in CONDITIONS}
    facts = tables.render("Condition", [("", "value")], [
        tables.Row(name, [tables.Cell("–" if pd.isna(value) else str(value), "text wrap")])
        for name, value in shown.items()
    ])  # fmt: skip
    drawn = table.dropna(subset=["tokens_per_second"])
    chart = throughput.bars(drawn, [arm for arm in order if arm in set(drawn["arm"])])
    caption = f"Bar = mean of the rounds, line = their range, in brackets the ratio to {base}; hollow = one round only."
    return [
        Heading(title),
        Charts([(f"Tokens per second: {title}", chart)] if len(drawn) else [], caption),
        Table(tables.render("Arm", [("", name) for name in COLUMNS], rows), table, f"throughput-{place}",
              note="Excluded: rounds with a preemption or a prefix-cache hit in either arm."),
        Table(facts, pd.DataFrame([shown]), f"conditions-{place}"),
    ]  # fmt: skip


def cells(row: pd.Series) -> list[tables.Cell]:
    """One arm's speed."""
    low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
    known = pd.notna(row["low"])
    return [
        tables.Cell(theme.count(row["tokens_per_second"])),
        tables.Cell(f"{theme.count(low)}–{theme.count(high)}" if pd.notna(low) else "–"),
        tables.Cell(row["ratio_text"]),
        tables.Cell(f"{row['low']:.2f}–{row['high']:.2f}" if known else "–"),
        tables.Cell(theme.count(row["rounds"])),
        tables.Cell(theme.count(row["excluded"]), "incomplete" if row["excluded"] else ""),
    ]
