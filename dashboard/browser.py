"""A served dashboard and a headless Chromium looking at it: shared by the README's pictures and the browser test."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dashboard.command import LOOPBACK, free_port, streamlit_arguments
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 60.0
PAGE_SECONDS = 120.0
# No frame of the page changes for this long: charts have been drawn and fonts have arrived.
QUIET_MILLISECONDS = 700


def find_chromium() -> Path | None:
    """Path of the system's Chromium or Chrome, None where there is none."""
    found = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    return Path(found) if found else None


@contextmanager
def served(store: Path, hide_texts: bool = False) -> Iterator[str]:
    """Address of a dashboard on `store`, stopped on exit. Raises UserError when it does not come up."""
    port = free_port(LOOPBACK, None)
    arguments = streamlit_arguments(store.resolve(), LOOPBACK, port, hide_texts)
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        _wait_until_healthy(process, port)
        yield f"http://{LOOPBACK}:{port}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            # on a machine that is busy with other work; nothing is written that a kill could tear
            process.kill()
            process.communicate()


def _wait_until_healthy(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            output = process.stdout.read() if process.stdout else ""
            raise UserError(f"The dashboard ended at start with exit code {process.returncode}: {output.strip()}")
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise UserError(f"The dashboard on port {port} did not answer within {START_SECONDS:.0f} s.")


@contextmanager
def chromium(width: int = 1400, height: int = 900, scale: float = 1.0) -> Iterator[Page]:
    """A blank page of a headless Chromium with the given window, in CSS pixels.

    Raises UserError when the machine has no Chromium.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a tool of the gate, not of the product

    executable = find_chromium()
    if executable is None:
        raise UserError(
            f"No Chromium on this machine (looked for {', '.join(CHROMIUM_NAMES)}). Install one with the system's "
            "package manager, for example: apt-get install chromium fonts-dejavu"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            window = {"width": width, "height": height}
            yield browser.new_page(viewport=window, device_scale_factor=scale, color_scheme="light")  # type: ignore[arg-type]
        finally:
            browser.close()


def visit(page: Page, address: str) -> None:
    """Open an address and wait until its script has run and its charts stand still."""
    page.goto(address)
    settle(page)


def settle(page: Page) -> None:
    """Wait until Streamlit is idle and the page's markup has not changed for QUIET_MILLISECONDS."""
    timeout = PAGE_SECONDS * 1000
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=timeout)
    page.wait_for_selector('[data-testid="stSkeleton"]', state="detached", timeout=timeout)
    page.wait_for_function(
        """quiet => new Promise(done => {
            let timer = setTimeout(() => done(true), quiet);
            new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(() => done(true), quiet); })
                .observe(document.body, {subtree: true, childList: true, attributes: true});
        })""",
        arg=QUIET_MILLISECONDS,
        timeout=timeout,
    )
