"""The static bundle: one file, nothing fetched, nothing but numbers, and clear refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard.bundle import page, vega
from dashboard.bundle.command import command
from orchestrator.errors import UserError
from orchestrator.store.tests.stores import build_store


@pytest.fixture(scope="module")
def html(store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("bundle") / "store.html"
    done = CliRunner().invoke(command, [str(store), "--html", str(out)], catch_exceptions=False)
    assert "opens in any browser" in done.output
    return out.read_text(encoding="utf-8")


def charts(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_it_has_a_section_with_the_same_numbers_for_every_page(html: str) -> None:
    for title in ("Overview", "Accuracy", "Differences", "Compression", "Protection", "Throughput", "Frontier",
                  "Lengths", "Replication", "Retention reasoner · reasoner_w"):  # fmt: skip
        assert re.search(rf'<h2 id="[^"]*">{title}</h2>', html), title
    assert "91.7 ▲ ±" in html
    assert "10 / 0 / 14" in html
    assert "33 % done" in html


def test_nothing_is_fetched_and_no_text_is_in_it(html: str) -> None:
    assert not re.search(r'(src|href)="(?!#)', html)
    assert "owned" not in html
    assert "<think>" not in html


def test_charts_are_plain_json_in_their_places(html: str) -> None:
    found = charts(html)
    assert len(found) >= 6
    assert all(f'id="{name}"' in html for name in found)
    assert all(spec["description"] and spec["$schema"].startswith("https://vega") for spec in found.values())


def test_texts_cannot_end_the_script_that_holds_them() -> None:
    assert "</script" not in page._inside_script({"a": "</script><b>", "b": float("nan")})
    assert json.loads(page._inside_script({"b": float("nan")})) == {"b": None}


def test_every_module_of_the_chart_script_is_in_the_import_map() -> None:
    imports = json.loads(vega.import_map())["imports"]
    assert "evictbench-charts/embed" in imports
    assert len(imports) > 5
    assert all(address.startswith("data:text/javascript;base64,") for address in imports.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reference", "randon"], "Did you mean 'random'"),
        (["--html", "no/such/folder/x.html"], "there is no directory"),
    ],
)
def test_bad_requests_say_what_to_do(store: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "out.html"
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(command, [str(store), "--html", str(out), *arguments], catch_exceptions=False)
    assert not out.exists()


def test_an_empty_store_makes_no_file(tmp_path: Path) -> None:
    made = build_store(tmp_path / "s", [])
    with pytest.raises(UserError, match="holds no rows yet"):
        CliRunner().invoke(command, [str(made.paths.root), "--html", str(tmp_path / "o.html")], catch_exceptions=False)
    assert not (tmp_path / "o.html").exists()
