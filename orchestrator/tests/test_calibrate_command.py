"""`evictbench calibrate`: end to end on the embedded model, and what it refuses before the model is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator import leaks, models
from orchestrator.commands.calibrate import command
from orchestrator.errors import UserError
from orchestrator.tasks import registry
from orchestrator.tasks.benchmark import MATH_INSTRUCTION
from orchestrator.tasks.reasoner import Numbers, Walk
from policies.calibration import ModelFacts, load

# drawn from a key that is no problem id, so no task has it
FOREIGN = "<|user|>" + Walk.draw(Numbers("a calibration test"), (12, 12), 4).prompt + "<|end|><|assistant|><think>R00x"


def calibrate(*options: str) -> Result:
    return CliRunner().invoke(command, ["embedded:reasoner", *options])


def written(file: Path, texts: Sequence[str]) -> str:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(file)


def test_calibrates_the_embedded_model(tmp_path: Path) -> None:
    texts = written(tmp_path / "t.jsonl", [FOREIGN] * 4)
    result = calibrate("--texts", texts, "--out", str(tmp_path / "c.safetensors"), "--tokens", "100", "--length", "32")
    assert result.exit_code == 0, result.output
    assert "no question of" in result.stderr
    model = models.resolve("embedded:reasoner")
    made = load(tmp_path / "c.safetensors", ModelFacts.read(model.path_on_disk, model.revision))
    assert made.meta.tokens == 100
    assert made.fingerprint in result.stdout
    again = calibrate("--texts", texts, "--out", str(tmp_path / "d.safetensors"), "--tokens", "100", "--length", "32")
    assert made.fingerprint in again.stdout


@pytest.mark.parametrize(
    ("task", "options"), [("reasoner_p", {}), ("gsm8k", {"mini": True}), ("math500", {"mini": True})]
)
def test_evaluation_questions_are_refused(tmp_path: Path, task: str, options: dict[str, bool]) -> None:
    question = registry.get(task, **options).problems()[1]
    bare = question.messages[-1]["content"].removesuffix(MATH_INSTRUCTION)
    hidden = "Some text.  " + bare.upper().replace(" ", "\n ") + " and an answer"
    texts = written(tmp_path / "t.jsonl", [FOREIGN, hidden])
    result = calibrate("--texts", texts, "--out", str(tmp_path / "c.safetensors"))
    assert isinstance(result.exception, UserError)
    assert f"text 2 holds the question {task}/{question.problem_id}" in str(result.exception)
    assert not (tmp_path / "c.safetensors").exists()


def test_what_questions_share_is_no_leak() -> None:
    """The instruction behind every question of a set is its template."""
    known = leaks.built_in()
    assert known.found_in("Please reason step by step, and put your final answer within \\boxed{}. " * 3) is None
    assert known.found_in(FOREIGN) is None
    assert known.compared["reasoner_w"] == 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"txt": "b"}\n', "t.jsonl:2: not a JSON object with a text field"),
        ("not json\n", "t.jsonl:1: not a JSON object"),
        ("", "holds no tokens"),
        ('{"text": "a"}\n', "statistics need at least 64"),
    ],
)
def test_files_that_hold_no_texts(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    result = calibrate("--texts", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "c"))
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_unknown_model_and_missing_file(tmp_path: Path) -> None:
    absent = CliRunner().invoke(command, ["embedded:reasonr", "--texts", written(tmp_path / "t.jsonl", ["a"])])
    assert "Did you mean" in str(absent.exception)
    assert "Name a text file" in str(calibrate("--texts", str(tmp_path / "no.txt")).exception)
