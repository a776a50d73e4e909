"""`python -m dashboard.pictures STORE OUTDIR`: take the README's pictures of the dashboard on a store."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from PIL import Image

from dashboard import browser, guard
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from playwright.sync_api import Page

MAX_BYTES = 200_000
WIDTH, HEIGHT = 1400, 1200
# The sidebar needs this much.
MIN_HEIGHT, MARGIN = 860, 32
PAGES = ("overview", "accuracy", "differences", "problems", "transcript", "retention")


def compressed(png: bytes) -> bytes:
    """The picture as a PNG of 256 colours, which loses nothing visible on charts and text.

    Raises UserError when it is still larger than MAX_BYTES.
    """
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    if out.tell() > MAX_BYTES:
        raise UserError(f"A picture has {out.tell():,} bytes, more than {MAX_BYTES:,}. Take a smaller window.")
    return out.getvalue()


def content_height(page: Page) -> float:
    """CSS pixels from the top of the window to the end of the page's lowest element."""
    elements = page.locator('[data-testid="stMainBlockContainer"] [data-testid="stElementContainer"]')
    return float(elements.evaluate_all("all => Math.max(0, ...all.map(e => e.getBoundingClientRect().bottom))"))


def take(page: Page, address: str, folder: Path) -> list[Path]:
    """Write one picture per page of PAGES into the folder; returns the files.

    A picture ends where the page ends, or with the window where the page is longer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    window = page.viewport_size
    assert window is not None
    files = []
    for name in PAGES:
        browser.visit(page, f"{address}/{'' if name == 'overview' else name}")
        files.append(folder / f"{name}.png")
        height = min(window["height"], max(MIN_HEIGHT, content_height(page) + MARGIN))
        clip = {"x": 0, "y": 0, "width": window["width"], "height": height}
        files[-1].write_bytes(compressed(page.screenshot(clip=clip)))  # type: ignore[arg-type]
    return files


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--width", default=WIDTH, show_default=True, help="Window width, pixels.")
@click.option("--height", default=HEIGHT, show_default=True, help="Largest height, pixels.")
def main(store: Path, folder: Path, width: int, height: int) -> None:
    """Take one picture of every page shown in the README from STORE into FOLDER."""
    try:
        guard.check(store)
        with browser.served(store) as address, browser.chromium(width, height) as page:
            for file in take(page, address, folder):
                click.echo(f"{file} {file.stat().st_size:,} bytes")
    except UserError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
