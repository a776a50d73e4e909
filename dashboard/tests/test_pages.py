"""Every page on a store worked out by hand, and on stores that are empty, broken, foreign or unfinished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import command
from dashboard.app import PAGES
from dashboard.frames import Rule, Show
from dashboard.tests.conftest import ARMS, HOSTILE, PROBLEMS, chunk_file
from orchestrator.chunks import ChunkId
from orchestrator.store.tests.stores import Arm, build_store

Open = Callable[..., AppTest]
ALL_PAGES = [name for views in PAGES.values() for name in views]


def html(app: AppTest) -> str:
    return " ".join(element.proto.body for element in app.get("html"))


def words(app: AppTest) -> str:
    elements = [*app.title, *app.caption, *app.markdown, *app.info, *app.warning, *app.error, *app.subheader]
    return " ".join(element.value for element in elements)


def cells_of(app: AppTest, label: str, rule: str) -> str:
    """Inner HTML of the first table row with this label and second line."""
    note = f'<span class="eb-note">{rule}</span>' if rule else ""
    head = f'<th scope="row">{label}{note}</th>'
    body = html(app)
    assert head in body, f"no row {label} / {rule}"
    return body.split(head, 1)[1].split("</tr>", 1)[0]


@pytest.mark.parametrize("page", ALL_PAGES)
def test_every_page_shows_the_store_without_a_traceback(page: str, store: Path, open_app: Open) -> None:
    app = open_app(store, page)
    assert not app.exception
    assert app.title[0].value == page.capitalize()


def test_overview_counts_verdicts_by_hand(store: Path, open_app: Open) -> None:
    app = open_app(store)
    assert {metric.label.split()[-1]: metric.value for metric in app.metric} == {
        "worse": "1", "unresolved": "1", "better": "1", "unfinished": "1",
    }  # fmt: skip
    assert "▲ +41.7" in cells_of(app, "recent", "prompt protected")
    assert "▼ −50.0" in cells_of(app, "random", "unprotected")
    assert "· +4.2" in cells_of(app, "streaming_llm", "sinks protected")
    assert "reference" in cells_of(app, "random", "prompt protected")


def test_overview_shows_an_unfinished_arm_hatched_and_without_a_verdict(store: Path, open_app: Open) -> None:
    row = cells_of(open_app(store), "random_inplace", "prompt protected")
    assert 'class="incomplete"' in row
    assert "33 % done" in row
    assert not {"▲", "▼", "·"} & set(row)


def test_overview_shows_the_progress_of_the_campaign(store: Path, open_app: Open) -> None:
    app = open_app(store)
    done = (len(ARMS) - 1) * PROBLEMS + 8
    assert f"{done} of {len(ARMS) * PROBLEMS} rows" in str([bar.proto.text for bar in app.get("progress")])


def test_accuracy_cells_carry_value_mark_interval_and_n(store: Path, open_app: Open) -> None:
    app = open_app(store, "accuracy")
    # Wilson at 12 of 24: 1.96 sqrt(24/4 + 1.96²/4) / (24 + 1.96²) = 18.6 points on each side
    assert "50.0 ±18.6 (24×1)" in cells_of(app, "random", "prompt protected")
    assert "91.7 ▲ ±" in cells_of(app, "recent", "prompt protected")
    assert "0.0 ▼ ±" in cells_of(app, "random", "unprotected")
    assert "truncated 16.7 %, no answer 16.7 %" in cells_of(app, "random", "unprotected")
    assert "100.0 ◌ ±" in cells_of(app, "random_inplace", "prompt protected")
    assert 'tr class="reference"><th scope="row">random<' in html(app)
    assert 'tr class="full"><th scope="row">full<' in html(app)


def test_differences_show_interval_counts_and_reason(store: Path, open_app: Open) -> None:
    app = open_app(store, "differences")
    recent = cells_of(app, "recent", "prompt protected")
    assert "▲ better" in recent
    assert "10 / 0 / 14" in recent
    assert "+41.7" in recent
    window = cells_of(app, "streaming_llm", "sinks protected")
    assert "too few: 1 problems differ, 6 needed" in window
    assert "33 % done" in cells_of(app, "random_inplace", "prompt protected")


def test_another_reference_changes_every_page(store: Path, open_app: Open) -> None:
    app = open_app(store, "differences", reference="recent")
    assert "against recent, prompt protected" in words(app)
    assert "▼ worse" in cells_of(app, "random", "prompt protected")


def test_an_unknown_reference_in_the_address_falls_back_to_random(store: Path, open_app: Open) -> None:
    app = open_app(store, "differences", reference="nonesuch")
    assert not app.exception
    assert "against random, prompt protected" in words(app)


def test_a_reference_that_ran_unprotected_only_is_named_so(tmp_path: Path, open_app: Open) -> None:
    arms = [Arm("random", "1" * 16, protection="none"), Arm("recent", "0" * 16)]
    app = open_app(build_store(tmp_path / "store", arms).paths.root)
    assert "against random, unprotected?" in words(app)


def test_the_same_rule_compares_within_a_protection_rule(store: Path, open_app: Open) -> None:
    app = open_app(store)
    app.sidebar.radio(key="rule").set_value(Rule.SAME).run()
    assert not app.exception
    assert "reference" in cells_of(app, "random", "unprotected")
    assert "–" in cells_of(app, "streaming_llm", "sinks protected")


def test_problems_are_listed_hardest_first_with_their_glyphs(store: Path, open_app: Open) -> None:
    app = open_app(store, "problems")
    grid = app.dataframe[0].value
    assert len(grid) == PROBLEMS
    assert set(grid["random · unprotected"]) == {"✕", "◧", "○"}
    assert grid.loc["p023", "recent · prompt protected"] == "✕"
    assert grid.loc["p023", "random_inplace · prompt protected"] == ""
    # p022 and p023 are solved by `full` alone, p000 to p007 by all but one arm
    assert set(grid.index[:2]) == {"p022", "p023"}
    assert set(grid.index[-8:]) == {f"p{i:03d}" for i in range(8)}


def test_problems_can_be_narrowed_to_those_that_differ(store: Path, open_app: Open) -> None:
    app = open_app(store, "problems")
    app.button_group[0].set_value(Show.DIFFERING).run()
    assert not app.exception
    assert len(app.dataframe[0].value) == PROBLEMS


def test_transcripts_show_hostile_text_as_text(store: Path, open_app: Open) -> None:
    app = open_app(store, "transcript")
    app.selectbox(key="problem").select("p001").run()
    app.selectbox(key="left").select("full").run()
    body = html(app)
    assert "<script" not in body
    assert "<img" not in body
    assert "&lt;script&gt;" in body
    assert not app.exception


def test_transcripts_stand_beside_the_reference_and_say_where_they_part(store: Path, open_app: Open) -> None:
    app = open_app(store, "transcript", problem="p001", left="full")
    app.selectbox(key="problem").select("p001").run()
    app.selectbox(key="left").select("full").run()
    assert app.selectbox(key="right").value == "random · prompt protected"
    assert "They share the first **0** of " in words(app)
    app.selectbox(key="left").select("recent · prompt protected").run()
    assert "Both texts are the same." in words(app)


def test_a_row_that_is_not_there_yet_is_said_to_be_missing(store: Path, open_app: Open) -> None:
    app = open_app(store, "transcript")
    app.selectbox(key="problem").select("p023").run()
    app.selectbox(key="left").select("random_inplace · prompt protected").run()
    assert not app.exception
    assert "not in the store yet" in words(app)


def test_hidden_texts_leave_neither_text_nor_answer(store: Path, open_app: Open) -> None:
    app = open_app(store, "transcript", command.HIDE_TEXTS)
    assert "hidden" in words(app)
    assert 'class="eb-text"' not in html(app)
    assert "answer <b>" not in html(app)
    assert "generated tokens <b>" in html(app)


def test_lengths_are_those_of_the_rows(store: Path, open_app: Open) -> None:
    app = open_app(store, "lengths")
    # problem i generates 1000 + i tokens: median of 0 .. 23
    assert "1,012" in cells_of(app, "full", "never evicts")
    assert "16.7" in cells_of(app, "random", "unprotected")
    # mean of 40 + i + 1000 + i over 24 problems / keep 264
    assert "4.0×" in cells_of(app, "random", "prompt protected")
    # p016 to p019 are cut at 1500 tokens instead of 1016 to 1019; (484 + 483 + 482 + 481) / 24
    assert ">+80<" in cells_of(app, "random", "unprotected")
    assert ">[0, 0]<" in cells_of(app, "recent", "prompt protected")


def test_runs_count_rows_and_show_the_job(store: Path, open_app: Open) -> None:
    app = open_app(store, "runs")
    assert "8 of 24" in html(app)
    assert html(app).count("24 of 24") == len(ARMS) - 1
    assert app.code[0].value == "name: demo"
    assert app.dataframe[0].value["rows"].sum() == (len(ARMS) - 1) * PROBLEMS + 8
    assert app.dataframe[1].value["vllm"].tolist() == ["0.32.0"]
    full, random = (arm.cell.cell_id for arm in ARMS[:2])
    app.selectbox(key="cell").select(full).run()
    app.selectbox(key="other cell").select(random).run()
    differing = html(app).split("Differs in", 1)[1].split("</table>", 1)[0]
    assert '<th scope="row">policy</th><td class="text wrap">full</td><td class="text wrap">random</td>' in differing
    assert '<th scope="row">keep</th><td class="text wrap">–</td><td class="text wrap">264</td>' in differing
    assert '<th scope="row">model</th>' not in differing


def test_live_shows_engines_failures_and_stale_heartbeats(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", ARMS[:2], planned=(PROBLEMS, 2))
    campaign = made.campaign("demo")
    campaign.heartbeat("engine-0", {"state": "ready", "updated_at": "2026-01-02T03:04:05+00:00", "running": 12,
                                    "waiting": 3, "finished": 40, "generated_tokens": 41000})  # fmt: skip
    cell = ARMS[0].cell.cell_id
    campaign.record_attempt(ChunkId(cell, 0, 1), 1, {"reason": HOSTILE, "engine_id": "engine-0"})
    log = campaign.log("engine-0")
    log.parent.mkdir()
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    app = open_app(made.paths.root, "live")
    body = html(app)
    assert "41,000" in body
    assert "days ago" in body
    assert "<script" not in body
    assert "50 % (24 of 48)" in body
    assert app.code[0].value.splitlines()[0] == "line 60"
    assert app.code[0].value.splitlines()[-1] == "line 99"
    assert "engine-0.log" in words(app)


@pytest.mark.parametrize("page", ["overview", "transcript"])
def test_an_empty_store_says_what_to_do(page: str, tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [])
    app = open_app(made.paths.root, page)
    assert not app.exception
    assert "holds no rows yet" in words(app)
    assert "evictbench run" in words(app)


def test_a_store_without_rows_shows_what_failed(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [])
    campaign = made.campaign("demo")
    for block in range(3):
        campaign.record_attempt(ChunkId("c0ffee", 0, block), 1, {"reason": "no space left", "cause": "retryable"})
    campaign.record_attempt(ChunkId("c0ffee", 0, 0), 2, {"reason": "no space left", "cause": "retryable"})
    app = open_app(made.paths.root)
    assert not app.exception
    assert '<td class="">3</td>' in cells_of(app, "c0ffee", "")
    assert "no space left" in html(app)


def test_a_missing_store_says_what_to_do(tmp_path: Path, open_app: Open) -> None:
    app = open_app(tmp_path / "nowhere")
    assert not app.exception
    assert "There is no store" in words(app)


def test_a_store_of_another_version_is_named(tmp_path: Path, open_app: Open) -> None:
    (tmp_path / "store.json").write_text(json.dumps({"schema_version": 999, "block": 8}))
    app = open_app(tmp_path, "accuracy")
    assert not app.exception
    assert "schema version 999" in words(app)


@pytest.mark.parametrize("page", ["overview", "retention", "runs"])
def test_one_corrupt_file_is_named_and_skipped(page: str, store: Path, tmp_path: Path, open_app: Open) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    broken = chunk_file(copy, ARMS[2], block=1)
    broken.write_bytes(broken.read_bytes()[:200])
    app = open_app(copy, page)
    assert not app.exception
    assert broken.name in words(app)
    if page == "overview":
        assert "67 % done" in cells_of(app, "recent", "prompt protected")


def test_a_store_of_broken_files_only_says_so(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [Arm("full", "1" * 8)])
    chunk_file(made.paths.root, Arm("full", "1" * 8)).write_bytes(b"no parquet")
    app = open_app(made.paths.root)
    assert not app.exception
    assert "no readable rows" in words(app)


def test_a_store_without_comparisons_says_why(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [Arm("full", "1" * 16), Arm("recent", "1" * 16)])
    assert "No comparison" in words(open_app(made.paths.root, "overview"))
    assert "No comparison" in words(open_app(made.paths.root, "differences"))


def test_a_store_with_full_alone_is_shown(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [Arm("full", "1" * 16)])
    app = open_app(made.paths.root)
    for page in ALL_PAGES:
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception, page


def test_several_models_tasks_and_budgets_can_be_chosen(tmp_path: Path, open_app: Open) -> None:
    arms = [
        Arm(policy, "1" * 16, keep=keep, model=model, task=task)
        for policy in ("full", "random", "recent")
        for keep in (264, 512)
        for model in ("embedded:reasoner", "some/other")
        for task in ("reasoner_w", "reasoner_p")
        if policy != "full" or keep == 264
    ]
    made = build_store(tmp_path / "store", arms)
    app = open_app(made.paths.root, "accuracy", budget="K 512 · r 16")
    assert not app.exception
    assert app.sidebar.selectbox(key="budget").value == "K 512 · r 16"
    assert html(app).count('class="eb-group">') == 2
    app.sidebar.multiselect(key="model").select("reasoner").run()
    assert html(app).count('class="eb-group">') == 1


def test_a_transcript_can_be_shaded_by_what_the_cache_held(store: Path, open_app: Open) -> None:
    app = open_app(store, "transcript")
    app.selectbox(key="problem").select("p003").run()
    app.toggle(key="shade").set_value(True).run()
    assert not app.exception
    assert "held-" in html(app)
    assert "gone in every layer and head" in html(app)


def test_live_says_how_fast_rows_arrive_and_when_they_may_be_done(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", ARMS[:2], planned=(PROBLEMS, 2))
    app = open_app(made.paths.root, "live")
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Rows left"] == "48"
    # 48 rows within a minute: 48 more take between 60 * 48 / 61.6 and 60 * 48 / 34.4 seconds
    assert shown["Time left"] == "47 s to 84 s"


def test_the_job_says_reference_and_margin_until_the_reader_chooses(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [Arm("random", "1" * 16), Arm("recent", "1" * 16)])
    campaign = made.campaign("demo")
    plan = campaign.plan().to_pylist()
    campaign.submit("name: demo\n", {"analysis": {"reference": "recent", "margin_points": 5}}, {}, plan)
    app = open_app(made.paths.root, "differences")
    assert app.sidebar.selectbox(key="reference").value == "recent"
    assert app.sidebar.toggle(key="equivalence").label == "Test equivalence (±5 points)"
    campaign.submit("name: demo\n", {"analysis": {"reference": "h2o"}}, {}, [*plan, plan[0]])
    again = open_app(made.paths.root, "differences")
    assert not again.exception
