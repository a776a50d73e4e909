"""`evictbench dashboard STORE`: browse a store in the browser. It only reads; a job may run on the store meanwhile."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from dashboard import guard, theme
from orchestrator.errors import UserError
from orchestrator.store import mirror

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8501
PORTS_TRIED = 20
APP = Path(__file__).with_name("app.py")
HIDE_TEXTS = "--hide-texts"


@click.command("dashboard")
@click.argument("store", type=click.Path(path_type=Path), default=Path("store"))
@click.option("--port", type=click.IntRange(1, 65535), help=f"Port; default is the first free one from {FIRST_PORT}.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen on.")
@click.option(HIDE_TEXTS, is_flag=True, help="Show no prompts and no generations (for a shared dashboard).")
def command(store: Path, port: int | None, host: str, hide_texts: bool) -> None:
    """Browse the rows of STORE (default ./store): accuracy, paired differences, transcripts."""
    named, store = store, mirror.local(store)
    guard.check(store)
    chosen = free_port(host, port)
    click.echo(f"evictbench dashboard on http://{host}:{chosen} (store {named}); Ctrl-C stops it.")
    arguments = streamlit_arguments(store.resolve(), host, chosen, hide_texts)
    # replaces this process: signals reach Streamlit itself, and nothing is left behind when it ends
    os.execv(sys.executable, [sys.executable, *arguments])


def free_port(host: str, wanted: int | None) -> int:
    """The wanted port, or the first free one of PORTS_TRIED from FIRST_PORT.

    Raises UserError when it is taken or the address is not one of this machine.
    """
    candidates = [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED)
    reason = ""
    for port in candidates:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                reason = str(error.strerror or error)
                continue
            return port
    where = f"port {wanted}" if wanted is not None else f"ports {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1}"
    raise UserError(f"Cannot listen on {host} {where}: {reason}. Choose another with --port or --host.")


def streamlit_arguments(store: Path, host: str, port: int, hide_texts: bool) -> list[str]:
    """Arguments after the interpreter: Streamlit without usage statistics, file watching or development menus."""
    options = {
        "server.headless": "true",
        "server.address": host,
        "server.port": str(port),
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "logger.level": "warning",
        "theme.base": "light",
        "theme.primaryColor": theme.BLUE,
        "theme.textColor": theme.INK,
        "theme.headingFontSizes": '["1.9rem","1.45rem","1.2rem"]',
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    app_flags = [HIDE_TEXTS] if hide_texts else []
    return ["-m", "streamlit", "run", str(APP), *flags, "--", str(store), *app_flags]
