"""`evictbench`: commands come from the entry-point group `evictbench.commands`, one module each, imported when used."""

from __future__ import annotations

import ast
import importlib.util
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any

import click

from orchestrator.errors import UserError, closest

GROUP = "evictbench.commands"


class _Commands(click.Group):
    """Commands by entry point. Help reads one line from each module's source, so that listing them imports nothing."""

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._points, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = self._points.get(cmd_name)
        if point is None:
            return super().get_command(ctx, cmd_name)
        try:
            command = point.load()
        except Exception as error:
            if point.module.startswith(("orchestrator.", "dashboard.")):
                raise
            raise UserError(f"command '{cmd_name}' of {_owner(point)} cannot be loaded: {error!r}.") from error
        assert isinstance(command, click.Command), f"{point.value} is not a click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            known = self.list_commands(ctx)
            raise UserError(f"no command '{name}'; commands: {', '.join(known)}.{closest(name, known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name, point in self._points.items():
            try:
                rows.append((name, _summary(point.module)))
            except (ImportError, OSError, SyntaxError, ValueError) as error:
                click.echo(f"Warning: command '{name}' of {_owner(point)} is broken: {error}", err=True)
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(str(error), err=True)
            ctx.exit(2)


def _summary(module: str) -> str:
    """First sentence of a module's docstring, from its source, which is not run. Raises ImportError if missing."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named '{module}'")
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    sentence = docstring.split("\n", 1)[0].split(". ", 1)[0].rstrip(".")
    # `evictbench plan`: what would run  ->  what would run
    return sentence.split(": ", 1)[1] if sentence.startswith("`evictbench ") and ": " in sentence else sentence


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("evictbench"), prog_name="evictbench")
def main() -> None:
    """Does a KV-cache eviction policy beat prompt-protected random eviction, at the same memory, and at what cost?

    \b
    evictbench plan jobs/demo.yaml      what a job would run, how long, and what it could resolve
    evictbench run jobs/demo.yaml       run what is missing; stop and run again as you like
    evictbench report jobs/demo.yaml    accuracy, paired differences with intervals, eviction facts
    """
