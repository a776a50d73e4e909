"""Tasks by name, options by field."""

from __future__ import annotations

import pytest

from orchestrator.errors import UserError
from orchestrator.tasks import registry


def test_tasks_are_discovered() -> None:
    assert {"reasoner_w", "reasoner_p", "jsonl"} <= set(registry.names())


@pytest.mark.parametrize("name", registry.names())
def test_every_task_declares_its_identity(name: str) -> None:
    task = registry._TASKS[name]
    for field in ("name", "version", "grader_version", "samples_default", "licence"):
        assert getattr(task, field), field


def test_unknown_task_names_the_closest() -> None:
    with pytest.raises(UserError, match=r"unknown task 'reasonerw'.*Did you mean 'reasoner_w'"):
        registry.get("reasonerw")


def test_unknown_option_names_the_closest() -> None:
    with pytest.raises(UserError, match=r"no option 'step'.*Did you mean 'steps'"):
        registry.get("reasoner_w", step="1-2")


def test_missing_option_is_named() -> None:
    with pytest.raises(UserError, match="needs the option 'path'"):
        registry.get("jsonl")


def test_paths_are_marked() -> None:
    assert registry.path_options("jsonl") == ("path",)
    assert registry.path_options("reasoner_w") == ()
