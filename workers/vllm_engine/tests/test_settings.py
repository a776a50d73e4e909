"""Settings: what is read back, what is refused and what the refusal says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.budget import Overflow, Protection
from workers.api import Eviction
from workers.vllm_engine.settings import (
    KEY,
    EngineSettings,
    SettingsError,
    from_extra_args,
    protected_prefix,
    resolve,
    to_extra_args,
)

EVICTION = Eviction("random", {}, 64, 16, Protection.PROMPT, 4, 2**64 - 1, Overflow.GROW)


def test_round_trips() -> None:
    assert from_extra_args(to_extra_args(EVICTION)) == EVICTION
    assert from_extra_args({KEY: json.dumps(to_extra_args(EVICTION)[KEY])}) == EVICTION
    assert from_extra_args({}) is None
    assert from_extra_args(None) is None
    settings = EngineSettings(64, 16, 100)
    assert EngineSettings.from_additional_config({KEY: settings.as_config()}) == settings
    assert EngineSettings.from_additional_config({}) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kepe": 3}, "unknown key 'kepe'.*did you mean 'keep'"),
        ({"v": 2}, "v must be 1, got 2"),
        ({"keep": 0}, "keep must be an integer >= 1, got 0"),
        ({"keep": "64"}, "keep must be an integer >= 1, got '64'"),
        ({"protection": "prompts"}, "protection must be one of prompt, sinks, none, got 'prompts'"),
        ({"overflow": "shrink"}, "overflow must be one of"),
    ],
)
def test_bad_request_settings_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        from_extra_args({KEY: to_extra_args(EVICTION)[KEY] | change})


def test_missing_and_malformed_settings_are_refused() -> None:
    raw = to_extra_args(EVICTION)[KEY]
    del raw["seed"]
    with pytest.raises(SettingsError, match="lacks seed"):
        from_extra_args({KEY: raw})
    with pytest.raises(SettingsError, match="not JSON"):
        from_extra_args({KEY: "{"})
    with pytest.raises(SettingsError, match="must be an object, got list"):
        from_extra_args({KEY: []})
    with pytest.raises(SettingsError, match=r"keep_ceiling.*positive integer, got None"):
        EngineSettings.from_additional_config({KEY: {"interval": 3, "max_prompt_tokens": 3}})


@pytest.mark.parametrize(
    ("protection", "overflow", "prompt", "prot", "keep"),
    [
        (Protection.PROMPT, Overflow.GROW, 40, 40, 64),
        (Protection.PROMPT, Overflow.GROW, 60, 60, 76),
        (Protection.NONE, Overflow.GROW, 60, 0, 76),  # memory stays equal to the protected arm's
        (Protection.NONE, Overflow.PER_ARM, 60, 0, 64),
        (Protection.SINKS, Overflow.PER_ARM, 60, 4, 64),
        (Protection.PROMPT, Overflow.PUBLISHED, 60, 47, 64),
        (Protection.PROMPT, Overflow.REFUSE, 40, 40, 64),
        (Protection.PROMPT, Overflow.GROW, 2, 4, 64),  # a prompt shorter than the sinks
    ],
)
def test_overflow(protection: Protection, overflow: Overflow, prompt: int, prot: int, keep: int) -> None:
    eviction = Eviction("random", {}, 64, 16, protection, 4, 1, overflow)
    schedule = resolve(eviction, prompt, prompt, 16, in_place=False)
    assert (schedule.prot, schedule.lengths.keep, schedule.overflow) == (prot, keep, keep > 64)
    assert protected_prefix(eviction, prompt) == prot


def test_what_cannot_be_resolved_is_refused() -> None:
    with pytest.raises(SettingsError, match="recent 16 exceeds the engine's interval 8"):
        resolve(EVICTION, 10, 10, 8, in_place=False)
    refuse = Eviction("random", {}, 64, 16, Protection.PROMPT, 4, 1, Overflow.REFUSE)
    with pytest.raises(SettingsError, match="prompt of 60 tokens does not fit: 60 protected"):
        resolve(refuse, 60, 60, 16, in_place=False)
    without_recent = Eviction("random_inplace", {}, 64, 0, Protection.PROMPT, 4, 1)
    with pytest.raises(SettingsError, match="interval 16 exceed keep 64"):
        resolve(without_recent, 60, 60, 16, in_place=True)
