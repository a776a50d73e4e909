"""Tables escape what they show; exports survive awkward values."""

from __future__ import annotations

import pandas as pd

from dashboard import tables, texts

HOSTILE = '<script>alert("x")</script> | **bold** & $x$'


def test_every_part_of_a_table_is_escaped() -> None:
    rows = [tables.Row(HOSTILE, [tables.Cell(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)], HOSTILE, HOSTILE)]
    html = tables.render(HOSTILE, [(HOSTILE, HOSTILE)], rows)
    assert "<script" not in html
    assert 'alert("x")' not in html
    assert html.count("&lt;script&gt;") == 11


def test_equal_neighbours_share_a_group_heading() -> None:
    html = tables.render("Policy", [("m", "a"), ("m", "b"), ("n", "a")], [])
    assert '<th colspan="2" class="eb-group">m</th><th colspan="1" class="eb-group">n</th>' in html
    assert '<th class="eb-corner" rowspan="2">Policy</th>' in html
    assert "eb-group" not in tables.render("Policy", [("", "a")], [])


def test_markdown_keeps_one_line_per_row_and_its_columns() -> None:
    text = tables.markdown(pd.DataFrame({"a": ["x|y", "two\nlines"], "b": [1, 2]}))
    assert text == "| a | b |\n| --- | --- |\n| x\\|y | 1 |\n| two lines | 2 |\n"


def test_first_difference_starts_at_the_differing_word() -> None:
    assert texts.first_difference("add 12 and 34", "add 12 and 35") == len("add 12 and ")
    assert texts.first_difference("same", "same") == 4
    assert texts.first_difference("same and more", "same") == 0
    assert texts.first_difference("", "x") == 0
    assert texts.first_difference("a b", "a b c") == len("a ")


def test_panel_shows_hostile_text_as_text_and_marks_where_it_differs() -> None:
    html = texts.panel(f"shared {HOSTILE}", shared=7)
    assert "<script" not in html
    assert '<span class="same">shared </span><span class="differs">&lt;script&gt;' in html


def test_panel_shows_a_window_of_a_long_text() -> None:
    html = texts.panel("a" * (texts.WINDOW + 5) + "end", start=3)
    assert html.count("a") >= texts.WINDOW
    assert "end" not in html
    assert html.startswith('<div class="eb-text">… ')
    assert html.endswith(" …</div>")
