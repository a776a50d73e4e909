"""Sums over the rows of a store, made in DuckDB: nothing here moves single generations into pandas.

A row counts when it is attested and has a verdict other than error; `cells` are cell ids, and cells without rows are
absent from every answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from orchestrator.store.reader import Reader

_MINE = "JOIN cells c USING (cell) WHERE c.cell_id IN (SELECT unnest($cells))"
_COUNTS = "(status = 'ok' AND verdict IS NOT NULL AND verdict NOT IN ('error', 'ungraded'))"
_QUANTILES = {"q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9}


def problem_sums(reader: Reader, cells: Sequence[str], samples: int | None = None) -> pd.DataFrame:
    """Per cell and problem: cell_id, problem_id, counts (answers that count), right, length (mean trace, tokens).

    Ordered by cell and problem id. samples: only sample indices below it.
    """
    return reader.frame(
        f"SELECT cell_id, problem_id, count(*) FILTER ({_COUNTS}) AS counts, "
        f"count(*) FILTER ({_COUNTS} AND verdict = 'correct') AS right, avg(n_prompt + n_output) AS length "
        f"FROM generations g {_MINE} AND ($samples IS NULL OR sample < $samples) "
        "GROUP BY cell_id, problem_id ORDER BY cell_id, problem_id",
        {"cells": list(cells), "samples": samples},
    )


def sample_counts(reader: Reader, cells: Sequence[str]) -> pd.DataFrame:
    """Per cell and sample index: cell_id, sample, graded (rows that have a grade), counts, right."""
    return reader.frame(
        "SELECT cell_id, sample, count(verdict) AS graded, "
        f"count(*) FILTER ({_COUNTS}) AS counts, count(*) FILTER ({_COUNTS} AND verdict = 'correct') AS right "
        f"FROM generations g {_MINE} GROUP BY cell_id, sample ORDER BY cell_id, sample",
        {"cells": list(cells)},
    )


def arm_means(reader: Reader, cells: Sequence[str]) -> pd.DataFrame:
    """Per cell, columns as in analysis_columns.ARMS: outcomes, lengths, evictions, caching, speed, preemptions.

    wrong .. error are shares of the graded rows; prompt_kept_min is the least, cached_peak the most of all rows.
    traced: rows with an eviction trace, the base of never_evicts.
    lenient is the mean over problems of the share right if unfinished thoughts counted; null unless all rows say.
    """
    shares = ", ".join(
        f"avg((verdict = '{name}')::INTEGER) AS {name}" for name in ("wrong", "no_answer", "truncated", "error")
    )
    lenient = (
        "SELECT cell, CASE WHEN bool_and(known) THEN avg(share) END AS lenient FROM ("
        "SELECT cell, bool_and(lenient IS NOT NULL) AS known, avg((lenient = 'correct')::INTEGER) AS share "
        f"FROM generations WHERE {_COUNTS} GROUP BY cell, problem_id) GROUP BY cell"
    )
    return reader.frame(
        f"SELECT cell_id, {shares}, any_value(l.lenient) AS lenient, "
        "avg(n_prompt) AS prompt_tokens, avg(n_output) AS output_tokens, count(events) AS traced, "
        "avg(events) AS events, avg((events = 0)::INTEGER) AS never_evicts, avg(prompt_kept_mean) AS prompt_kept_mean, "
        "min(prompt_kept_min) AS prompt_kept_min, max(cached_peak) AS cached_peak, avg(cached_mean) AS cached_mean, "
        "sum(overflow::INTEGER)::BIGINT AS overflow_rows, "
        "avg(decode_tokens_per_second) AS decode_tokens_per_second, sum(num_preemptions)::BIGINT AS preemptions "
        f"FROM generations g LEFT JOIN ({lenient}) l USING (cell) {_MINE} GROUP BY cell_id ORDER BY cell_id",
        {"cells": list(cells)},
    )


def lengths(reader: Reader, cells: Sequence[str]) -> pd.DataFrame:
    """Per cell: rows, quantiles of generated tokens (q10 .. q90), shares truncated and never_evicted, compression.

    compression = mean of (prompt + generated) / mean cached tokens per head; NaN for an arm that never evicts.
    """
    quantiles = ", ".join(f"quantile_cont(n_output, {q}) AS {name}" for name, q in _QUANTILES.items())
    return reader.frame(
        f"SELECT cell_id, {quantiles}, count(*) AS rows, avg((finish_reason = 'length')::INTEGER) AS truncated, "
        "avg((events = 0)::INTEGER) AS never_evicted, "
        "CASE WHEN max(events) > 0 THEN avg(n_prompt + n_output) / avg(cached_mean) END AS compression "
        f"FROM generations g {_MINE} GROUP BY cell_id ORDER BY cell_id",
        {"cells": list(cells)},
    )


def outcomes(reader: Reader, cells: Sequence[str]) -> pd.DataFrame:
    """Per cell and problem, ungraded and failed rows included: cell_id, problem_id, problem_index, samples, graded, and
    one count per verdict (correct, wrong, truncated, no_answer, error, ungraded)."""
    named = ", ".join(
        f"count(*) FILTER (coalesce(verdict, 'ungraded') = '{name}') AS {name}"
        for name in ("correct", "wrong", "truncated", "no_answer", "error", "ungraded")
    )
    return reader.frame(
        "SELECT cell_id, problem_id, any_value(problem_index) AS problem_index, count(*) AS samples, "
        f"count(*) FILTER (verdict NOT IN ('error', 'ungraded')) AS graded, {named} "
        f"FROM generations g {_MINE} GROUP BY cell_id, problem_id ORDER BY cell_id, problem_index",
        {"cells": list(cells)},
    )


def samples(reader: Reader, cells: Sequence[str], problem_id: str) -> list[int]:
    """Sample indices that any of the cells has of a problem, sorted."""
    found = reader.frame(
        f"SELECT DISTINCT sample FROM generations g {_MINE} AND problem_id = $problem ORDER BY sample",
        {"cells": list(cells), "problem": problem_id},
    )
    return [int(value) for value in found["sample"]]


def ages(reader: Reader, cells: Sequence[str]) -> pd.DataFrame:
    """Per cell: cell_id and `kept`, the age histograms of all rows summed (list of AGE_BINS counts)."""
    summed = reader.frame(
        f"SELECT cell_id, place, sum(kept[place])::BIGINT AS slots FROM ages a {_MINE.replace('WHERE', _BINS)} "
        "GROUP BY cell_id, place ORDER BY cell_id, place",
        {"cells": list(cells)},
    )
    return summed.groupby("cell_id")["slots"].agg(list).rename("kept").reset_index()


_BINS = "CROSS JOIN (SELECT unnest(range(1, (SELECT coalesce(max(len(kept)), 0) + 1 FROM ages))) AS place) WHERE"


def cached_lengths(reader: Reader, cells: Sequence[str]) -> pd.DataFrame:
    """Per cell and length of rows that evict: cell_id, length (tokens written to the cache at the end), rows."""
    # the last generated token is never written to the cache
    return reader.frame(
        "SELECT cell_id, n_prompt + n_output - 1 AS length, count(*) AS rows "
        f"FROM generations g {_MINE} AND events IS NOT NULL GROUP BY ALL ORDER BY cell_id, length",
        {"cells": list(cells)},
    )


def spread_rows(reader: Reader, cell: str, most: int) -> pd.DataFrame:
    """At most `most` rows of a cell, evenly spread over its problems: n_prompt, n_output, and the cell's budget."""
    return reader.frame(
        "SELECT n_prompt, n_output, keep, interval, recent, protection, n_sink, overflow_mode FROM ("
        "SELECT *, row_number() OVER (ORDER BY problem_index, sample) - 1 AS place, count(*) OVER () AS total "
        f"FROM generations g {_MINE}) WHERE place % greatest(1, total // $most) = 0 ORDER BY place LIMIT $most",
        {"cells": [cell], "most": most},
    )


def origins(reader: Reader, cells: Sequence[str] | None = None) -> pd.DataFrame:
    """What made the rows: engine_kind, gpu, node, runner, graph_mode, git_revision, rows; first and last finish."""
    columns = "engine_kind, gpu, node, runner, graph_mode, git_revision"
    where = "" if cells is None else _MINE
    return reader.frame(
        f"SELECT {columns}, count(*) AS rows, min(finished_at) AS first, max(finished_at) AS last "
        f"FROM generations g JOIN origins o USING (origin) {where} GROUP BY ALL ORDER BY ALL",
        {} if cells is None else {"cells": list(cells)},
    )


def pace(reader: Reader, minutes: int) -> pd.DataFrame:
    """Rows and generated tokens by minute over the last `minutes` up to the newest row: minute, rows, tokens."""
    return reader.frame(
        "SELECT date_trunc('minute', finished_at) AS minute, count(*) AS rows, sum(n_output)::BIGINT AS tokens "
        "FROM generations WHERE finished_at > (SELECT max(finished_at) FROM generations) - to_minutes($minutes) "
        "GROUP BY minute ORDER BY minute",
        {"minutes": minutes},
    )
