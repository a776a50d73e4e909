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
WIDTH, HEIGHT = 1400, 900
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


def take(page: Page, address: str, folder: Path) -> list[Path]:
    """Write one picture per page of PAGES, as large as the browser's window, into the folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in PAGES:
        browser.visit(page, f"{address}/{'' if name == 'overview' else name}")
        files.append(folder / f"{name}.png")
        files[-1].write_bytes(compressed(page.screenshot()))
    return files


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--width", default=WIDTH, show_default=True, help="Window width, pixels.")
@click.option("--height", default=HEIGHT, show_default=True, help="Window height, pixels.")
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
