"""The length model: what any rows must not change, and what it learns of a world that it was made for."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.lengths import (
    DEFAULT_DOUBT,
    MEASURED_DOUBT,
    Kind,
    Lengths,
    Seen,
    Source,
    kind_of,
    learn,
)
from policies.budget import Protection

SOURCES = [
    Source(f"{model}-{kind.value}-{arm}", model, "t", kind) for model in "ab" for kind in Kind for arm in range(2)
]
seen_rows = st.lists(
    st.builds(
        Seen,
        source=st.sampled_from(SOURCES),
        problem_id=st.sampled_from(["p0", "p1", "p2", "p3"]),
        rows=st.integers(1, 5),
        tokens=st.floats(1, 1e6),
    ),
    max_size=30,
)
PRIOR = 500.0


def figures(lengths: Lengths, prior: float = PRIOR) -> list[float]:
    return [lengths.expected(source, problem, prior) for source in SOURCES for problem in ("p0", "p3", "new")]


def test_without_rows_the_prior_is_the_answer_and_everything_is_in_doubt() -> None:
    assert set(figures(Lengths())) == {PRIOR}
    assert [Lengths().doubt(source) for source in SOURCES] == pytest.approx([DEFAULT_DOUBT] * len(SOURCES))
    assert Lengths().origin(SOURCES[0]) == "the task's own figure"


@given(seen_rows, st.randoms(use_true_random=False))
def test_order_and_bundling_of_rows_change_nothing(rows: list[Seen], shuffle: random.Random) -> None:
    apart = [Seen(r.source, r.problem_id, 1, r.tokens / r.rows) for r in rows for _ in range(r.rows)]
    shuffle.shuffle(apart)
    assert figures(learn(apart)) == pytest.approx(figures(learn(rows)), rel=1e-6)


@given(seen_rows, st.floats(1.0, 100.0))
def test_longer_answers_make_longer_forecasts_in_proportion(rows: list[Seen], scale: float) -> None:
    long = [Seen(r.source, r.problem_id, r.rows, r.tokens * 1e3) for r in rows]
    longer = [Seen(r.source, r.problem_id, r.rows, r.tokens * 1e3 * scale) for r in rows]
    expected = [figure * scale for figure in figures(learn(long))]
    assert figures(learn(longer), PRIOR * scale) == pytest.approx(expected, rel=1e-6)


@given(seen_rows)
def test_levels_lie_between_the_prior_and_what_was_seen_and_rows_of_one_model_say_nothing_of_another(
    rows: list[Seen],
) -> None:
    lengths = learn(rows)
    for source in SOURCES:
        mine = [found.tokens / found.rows for key, found in lengths.levels.items() if key[0] == source.model]
        assert min([PRIOR, *mine]) * 0.999 <= lengths.level(source, PRIOR) <= max([PRIOR, *mine]) * 1.001
    only_a = learn([r for r in rows if r.source.model == "a"])
    assert {only_a.level(source, PRIOR) for source in SOURCES if source.model == "b"} == {PRIOR}


@given(seen_rows, st.sampled_from(SOURCES))
def test_doubt_falls_with_rows_and_stays_within_its_bounds(rows: list[Seen], source: Source) -> None:
    before, after = learn(rows), learn([*rows, Seen(source, "p0", 8, 8000.0)])
    assert MEASURED_DOUBT <= after.doubt(source) < before.doubt(source) <= DEFAULT_DOUBT * (1 + 1e-12)


def test_enough_rows_of_a_cell_outweigh_everything_else() -> None:
    own = [Seen(SOURCES[0], f"p{i}", 100, 100 * 7000.0) for i in range(4)]
    other = [Seen(SOURCES[2], f"p{i}", 100, 100 * 900.0) for i in range(4)]
    lengths = learn([*own, *other])
    assert lengths.level(SOURCES[0], PRIOR) == pytest.approx(7000, rel=0.05)
    assert lengths.origin(SOURCES[0]) == "this cell's rows"
    assert lengths.origin(SOURCES[1]) == "rows of the same model and task"


def world(samples: int, problems: Sequence[int], seed: int) -> list[Seen]:
    """Rows of a world of cells x problems with noise; a cell shows only a part of the problems."""
    noise = random.Random(seed)
    return [
        Seen(source, f"p{p}", 1, truth(source, p) * math.exp(noise.gauss(-0.045, 0.3)))
        for source in SOURCES[:4]
        for p in problems
        for _ in range(samples)
        if (p + SOURCES.index(source)) % 3
    ]


def truth(source: Source, problem: int) -> float:
    return 4000.0 * (1 + SOURCES.index(source)) * (0.4, 0.7, 1.0, 1.3, 1.6)[problem % 5]


def test_problems_that_an_arm_has_not_answered_yet_are_forecast_from_the_other_arms() -> None:
    problems = range(40)
    lengths = learn(world(4, problems, seed=1))
    flat = Lengths(lengths.levels)
    unseen = [(s, p) for s in SOURCES[:4] for p in problems if not (p + SOURCES.index(s)) % 3]

    def error(model: Lengths) -> float:
        found = [abs(math.log(model.expected(s, f"p{p}", PRIOR) / truth(s, p))) for s, p in unseen]
        return sum(found) / len(found)

    assert error(lengths) < 0.2
    assert error(lengths) < error(flat) / 2


def test_arms_fall_into_three_kinds() -> None:
    assert [kind_of(p) for p in (None, Protection.PROMPT, "prompt", Protection.SINKS, "none")] == [
        Kind.FULL,
        Kind.PROTECTED,
        Kind.PROTECTED,
        Kind.UNPROTECTED,
        Kind.UNPROTECTED,
    ]
