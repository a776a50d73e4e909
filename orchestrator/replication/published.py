"""Published numbers as data, with their sources: 796 of the paper and its repository, third parties' apart.

Facts only. `random_attention.csv`: arXiv 2609.03430 (`paper`), the authors' repository (`repository`), the article
about them (`article`), the VaSE repository at bfa2692 and the fork of takuma104 (third parties). A number that several
of them print is one row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from orchestrator.analysis_columns import frame
from orchestrator.errors import UserError, closest
from orchestrator.replication.columns import PUBLISHED

_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?")
_RANGE = re.compile(r"(\d+(?:\.(\d+))?)-(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Paper:
    """A publication. third_parties: values of `source` that are neither the paper nor its own repository."""

    name: str
    title: str
    file: str
    third_parties: frozenset[str]


PAPERS = {
    paper.name: paper
    for paper in (
        Paper(
            "random-attention",
            "Random Attention (arXiv 2609.03430)",
            "random_attention.csv",
            frozenset({"VaSE repository", "takuma104 fork"}),
        ),
    )
}


def named(name: str) -> Paper:
    """A paper by name. Raises UserError with the known names."""
    if name not in PAPERS:
        raise UserError(f"unknown paper '{name}'; known: {', '.join(PAPERS)}.{closest(name, PAPERS)}")
    return PAPERS[name]


@cache
def _read(file: str) -> pd.DataFrame:
    return pd.read_csv(Path(__file__).parent / "data" / file, dtype=str, keep_default_na=False)


def published(paper: Paper) -> pd.DataFrame:
    """Every published number with the columns PUBLISHED, in the order of the publication."""
    rows = [
        {
            **row,
            "keep": int(row["budget"]) if row["budget"] else None,
            "published": row["value"],
            "third_party": row["source"] in paper.third_parties,
            **_parsed(row["value"]),
        }
        for row in _read(paper.file).to_dict("records")
    ]
    return frame(rows, PUBLISHED)


def _parsed(text: str) -> dict[str, float | None]:
    """The number, or the ends of the range, that a printed value holds; words stay words."""
    if found := _NUMBER.fullmatch(text):
        value = float(text)
        return {"value": value, "value_low": value, "value_high": value, "rounding": _rounding(found[1])}
    if found := _RANGE.fullmatch(text):
        low, high = float(found[1]), float(found[3])
        return {"value": None, "value_low": low, "value_high": high, "rounding": _rounding(found[2])}
    return dict.fromkeys(("value", "value_low", "value_high", "rounding"))


def _rounding(decimals: str | None) -> float:
    return 0.5 * 10.0 ** -len(decimals or "")
