"""`evictbench verify KIND FILE`: run a file of cases through what this installation really uses."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import click

from orchestrator import verify
from orchestrator.errors import UserError, closest


def kinds() -> list[str]:
    """Kinds on the command line: the modules of orchestrator.verify, found by name so that none is imported."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(verify.__path__) if not module.ispkg)


@click.command(epilog=f"Kinds: {', '.join(kinds())}.")
@click.argument("kind")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_context
def command(context: click.Context, kind: str, file: Path) -> None:
    """Check every case of FILE (JSON) and print what differs; some kinds print every case and how it was judged.

    The last line counts: `N passed, M failed`; exit status 1 when a case failed.
    """
    if kind not in kinds():
        raise UserError(f"verify: unknown kind '{kind}'; known: {', '.join(kinds())}.{closest(kind, kinds())}")
    document = _read(file)
    check = importlib.import_module(f"{verify.__name__}.{kind.replace('-', '_')}").check
    passed = failed = 0
    for name, problem, *notes in check(document):
        if problem is None:
            passed += 1
            for note in notes:
                click.echo(f"{note} {name}")
        else:
            failed += 1
            click.echo(f"FAIL {name}: {problem}")
    click.echo(f"{passed} passed, {failed} failed")
    context.exit(1 if failed or not passed else 0)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}. Name a JSON file of cases.") from error
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}.") from error
