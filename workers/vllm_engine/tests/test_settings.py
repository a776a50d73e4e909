"""Settings: what is read back, what is refused and what the refusal says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.base import Needs
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
from workers.vllm_engine.state import lacking_needs, reads_prefix_cache, resolve_policy

ENGINE = EngineSettings(128, 16, 100, Needs(recent_queries=64, attention="prefill"))
EVICTION = Eviction("random", {}, 64, 16, Protection.PROMPT, 4, 2**64 - 1, Overflow.GROW)


def test_round_trips() -> None:
    assert from_extra_args(to_extra_args(EVICTION)) == EVICTION
    assert from_extra_args({KEY: json.dumps(to_extra_args(EVICTION)[KEY])}) == EVICTION
    assert from_extra_args({}) is None
    assert from_extra_args(None) is None
    settings = EngineSettings(64, 16, 100)
    assert EngineSettings.from_additional_config({KEY: settings.as_config()}) == settings
    assert EngineSettings.from_additional_config({}) is None


def test_needs_and_a_default_round_trip() -> None:
    given = {
        "keep_ceiling": 64,
        "interval": 16,
        "max_prompt_tokens": 100,
        "needs": {"recent_queries": 8, "attention": "step"},
        "calibration": "file",
        "default": {"v": 1, "policy": "random", "keep": 64, "recent": 16, "protection": "prompt"},
    }
    settings = EngineSettings.from_additional_config({KEY: given})
    assert settings is not None
    assert settings.needs == Needs(recent_queries=8, attention="step")
    assert EngineSettings.from_additional_config({KEY: settings.as_config()}) == settings
    assert json.loads(settings.default) == given["default"]
    for change, says in (
        ({"needs": {"queries": 8}}, "unknown key 'queries'"),
        ({"needs": {"recent_queries": "8"}}, "must be of type int, got '8'"),
        ({"default": {"v": 1, "policy": "random"}}, "lacks keep, recent, protection"),
    ):
        with pytest.raises(SettingsError, match=says):
            EngineSettings.from_additional_config({KEY: given | change})


@pytest.mark.parametrize(
    ("policy", "engine", "lacking"),
    [
        (Needs(positions=True, order=True), Needs(), []),
        (Needs(recent_queries=8), Needs(recent_queries=64), []),
        (Needs(recent_queries=64), Needs(recent_queries=8), ["recent_queries 64"]),
        (Needs(attention="step"), Needs(attention="prefill"), []),
        (Needs(attention="prefill"), Needs(attention="step"), ["attention prefill"]),
        (Needs(calibration=True, slot_state=2), Needs(slot_state=1), ["calibration", "slot_state 2"]),
    ],
)
def test_lacking_needs_are_named(policy: Needs, engine: Needs, lacking: list[str]) -> None:
    assert lacking_needs(policy, engine) == lacking


def test_the_prefix_cache_serves_only_what_stays_as_it_was() -> None:
    def reads(policy: str, protection: Protection, keep: int) -> bool:
        eviction = Eviction(policy, {}, keep, 16, protection, 4, 1)
        return reads_prefix_cache(*resolve_policy(eviction, 40, 40, ENGINE), 40)

    assert reads("random", Protection.PROMPT, 64)
    assert not reads("random", Protection.SINKS, 64)
    assert not reads("h2o", Protection.PROMPT, 64)  # the prompt's attention counts
    # the first event is at 64 + 16 tokens: 40 decoded queries, fewer than the 64 that snapkv looks at
    assert not reads("snapkv", Protection.PROMPT, 64)
    assert reads("snapkv", Protection.PROMPT, 88)
    assert not reads("snapkv", Protection.PROMPT, 87)
    assert reads_prefix_cache(*resolve_policy(None, 40, 40, ENGINE), 40)


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
