"""A real browser walks all pages: nothing overflows the window, no error shows, links and choices keep their state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dashboard import browser, pictures
from dashboard.app import PAGES
from dashboard.bundle.command import command

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.find_chromium() is None, reason="no Chromium on this machine"),
]
ALL_PAGES = [name for views in PAGES.values() for name in views]


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    with browser.served(store) as url:
        yield url


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser.chromium() as opened:
        yield opened


def errors(page: Page) -> list[str]:
    return [one.inner_text() for one in page.query_selector_all('[data-testid="stException"], .stAlert--error')]


@pytest.mark.parametrize("width", [1400, pytest.param(900, marks=pytest.mark.slow)])
def test_every_page_fits_its_window(page: Page, address: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for name in ALL_PAGES:
        browser.visit(page, f"{address}/{name}" if name != "overview" else address)
        assert page.inner_text("h1") == name.capitalize()
        assert errors(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for chart in page.query_selector_all('[data-testid="stVegaLiteChart"]'):
            box = chart.bounding_box()
            drawn = chart.query_selector("canvas, svg")
            assert box is not None
            assert drawn is not None, f"{name}: an empty chart"
            inner = drawn.bounding_box()
            assert inner is not None
            assert inner["width"] <= box["width"] + 1, f"{name}: a chart is wider than its place"


def test_hostile_text_stays_text(page: Page, address: str) -> None:
    browser.visit(page, f"{address}/transcript?problem=p001&left=full")
    assert "<script>" in page.inner_text(".eb-text")
    assert page.title() != "owned"
    assert page.query_selector(".eb-text img") is None


def test_an_address_carries_the_choices_to_another_page(page: Page, address: str) -> None:
    browser.visit(page, f"{address}/accuracy?reference=recent")
    assert "recent, prompt protected" in page.inner_text('[data-testid="stMainBlockContainer"]')
    page.click('[data-testid="stSidebarNav"] >> text=Differences')
    page.wait_for_selector("h1:has-text('Differences')")
    browser.settle(page)
    assert "reference=recent" in page.url
    assert "against recent, prompt protected" in page.inner_text('[data-testid="stMainBlockContainer"]')


def test_a_difference_links_to_its_problems(page: Page, address: str) -> None:
    browser.visit(page, f"{address}/differences")
    page.click("td a >> nth=0")
    page.wait_for_selector("h1:has-text('Problems')")
    browser.settle(page)
    assert "show=" in page.url
    assert errors(page) == []


def test_pictures_are_small_and_of_every_named_page(page: Page, address: str, tmp_path: Path) -> None:
    files = pictures.take(page, address, tmp_path)
    assert [file.stem for file in files] == list(pictures.PAGES)
    assert all(5_000 < file.stat().st_size < pictures.MAX_BYTES for file in files)


def test_a_bundle_draws_its_charts_without_a_server(page: Page, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "store.html"
    assert CliRunner().invoke(command, [str(store), "--html", str(out)], catch_exceptions=False).exit_code == 0
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.goto(out.as_uri())
    page.wait_for_function("document.body.dataset.charts", timeout=60_000)
    assert page.evaluate("document.body.dataset.charts") == "drawn"
    assert page.evaluate("[...document.querySelectorAll('.chart')].every(place => place.querySelector('svg'))")
    assert problems == []
