"""Policies by name: discovery, parameters, user files, and what a mistake prints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from policies import registry
from policies.base import Needs, Policy, Replacer, Scorer, resolve_dotted
from policies.registry import PolicyError

USER_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from policies.base import Scorer

@dataclass(frozen=True)
class Oldest(Scorer):
    name: ClassVar[str] = "oldest"
    weight: float = 1.0

    def score(self, view):
        return -view.need("positions")

class Bare(Scorer):
    name: ClassVar[str] = "bare"
    weight: float = 1.0

NOT_A_CLASS = 3
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    return file


def test_every_module_of_methods_is_found() -> None:
    first = {"full", "random", "random_block", "random_inplace", "random_shared", "recent", "streaming_llm"}
    assert first <= set(registry.names())
    assert list(registry.names()) == sorted(registry.names())


@pytest.mark.parametrize("name", registry.names())
def test_a_built_in_names_code_that_exists_and_builds_again_from_its_own_parameters(name: str) -> None:
    policy = registry.build(name, registry.get(name).example)
    assert policy.name == name
    assert registry.build(name, policy.params()) == policy
    if isinstance(policy, Scorer) and type(policy).score is Scorer.score:
        assert callable(resolve_dotted(policy.scorer))
    if isinstance(policy, Replacer):
        assert callable(resolve_dotted(policy.victim_slots))


def test_validating_every_policy_leaves_torch_and_numpy_out() -> None:
    code = (
        "import sys; from policies import registry; "
        "[registry.build(name, registry.get(name).example) for name in registry.names()]; "
        "print([m for m in ('torch', 'numpy', 'vllm') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


MISTAKES = [
    ("radnom", {}, "unknown policy 'radnom'; known: caote, full, ", "Did you mean 'random'?"),
    ("random", {"sede": 1}, "policy 'random' has no parameter 'sede'; parameters: none.", ""),
    ("random_block", {"blok": 8}, "no parameter 'blok'; parameters: block. Did you mean 'block'?", ""),
    ("random_block", {"block": 0}, "policy 'random_block': block is 0; it must be at least 1.", ""),
    (
        "random_block",
        {"block": "8"},
        "parameter 'block' of policy 'random_block' is '8'; it must be a whole number.",
        "",
    ),
    ("AdaKV", {}, "policy 'AdaKV' (arXiv 2407.11550) cannot run here: it gives each head", "share one cached length"),
    ("pyramid_kv", {}, "cannot run here: it gives each layer a number of slots of its own", "Known: "),
    ("duo-attention", {}, "cannot run here: it keeps everything in some heads", ""),
    ("snapkv", {"window": 0}, "policy 'snapkv': window is 0; it must be at least 1.", ""),
    ("snapkv", {"kernel": 4}, "kernel is 4; it must be odd and at least 1.", ""),
    ("snapkv", {"pool": "mean"}, "pool is 'mean'; choose avg or max.", ""),
    ("snapkv", {"slot_order": "age"}, "slot_order is 'age'; choose position or score.", ""),
    ("snapkv_rkv", {"ties": "any"}, "ties is 'any'; choose slot or raw.", ""),
    ("rkv", {"mix_lambda": 1.5}, "mix_lambda is 1.5; it must be 0.0 to 1.0.", ""),
    ("rkv", {"mix_lambda": float("nan")}, "mix_lambda is nan; it must be 0.0 to 1.0.", ""),
    ("rkv_official", {"threshold": -2}, "threshold is -2.0; it must be -1.0 to 1.0.", ""),
    ("rkv_official", {"retain": "first_percent"}, "retain is 'first_percent'; choose last or first.", ""),
    ("vase", {"n_large": -2}, "n_large is -2; it must be at least 0, or -1 for a quarter of keep.", ""),
    ("vase_paper", {"n_sink": -1}, "policy 'vase_paper': n_sink is -1; it must be at least 0.", ""),
    ("h2o", {"prefill": 1}, "parameter 'prefill' of policy 'h2o' is 1; it must be true or false.", ""),
    ("random_block", {"block": True}, "is True; it must be a whole number.", ""),
    ("random_block", {"block": 8.0}, "is 8.0; it must be a whole number.", ""),
    ("nowhere.py:Mine", {}, "nowhere.py does not exist.", ""),
    ("mine.txt:Mine", {}, "'mine.txt:Mine' is not a policy name nor file.py:Class; known names: caote, full, ", ""),
]


@pytest.mark.parametrize(("name", "params", "first", "second"), MISTAKES)
def test_a_mistake_is_one_line_with_value_and_choices(
    name: str, params: dict[str, object], first: str, second: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        registry.build(name, params)
    message = str(caught.value)
    assert first in message
    assert second in message
    assert "\n" not in message


def test_a_users_file_is_a_policy(user_file: Path) -> None:
    built = registry.build(f"{user_file}:Oldest", {"weight": 2})
    assert (built.name, built.params()) == ("oldest", {"weight": 2.0})
    assert type(built.params()["weight"]) is float
    assert registry.load(f"{user_file}:Oldest") is type(built)
    assert "oldest" not in registry.names()


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("Oldst", "no policy class 'Oldst' in .*mine.py; classes: Oldest, Bare. Did you mean 'Oldest'?"),
        ("NOT_A_CLASS", "no policy class 'NOT_A_CLASS'"),
        ("Bare", "Bare is no frozen dataclass"),
    ],
)
def test_a_class_that_is_no_policy_is_refused(user_file: Path, attribute: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        registry.load(f"{user_file}:{attribute}")


def test_a_users_file_that_does_not_import_is_an_error_with_its_cause(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_module_anywhere\n")
    with pytest.raises(
        PolicyError, match=r"broken\.py: ModuleNotFoundError: No module named 'no_such_module_anywhere'"
    ):
        registry.load(f"{file}:Mine")


def test_a_required_parameter_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "needy.py"
    file.write_text(USER_FILE.replace("weight: float = 1.0", "weight: float"))
    with pytest.raises(PolicyError, match="needs the parameter 'weight'"):
        registry.build(f"{file}:Oldest", {})


def test_a_name_belongs_to_one_class() -> None:
    registry.names()

    @dataclass(frozen=True)
    class Impostor(Scorer):
        name: ClassVar[str] = "random"

    with pytest.raises(PolicyError, match=r"'random' is used by policies\.methods\.random_attention\.RandomAttention"):
        registry.register(Impostor)
    assert registry.register(registry.get("random")) is registry.get("random")


def test_a_nameless_class_is_refused() -> None:
    @dataclass(frozen=True)
    class Nameless(Scorer):
        needs: ClassVar[Needs] = Needs()

    with pytest.raises(PolicyError, match="name '' must be a text"):
        registry.register(Nameless)


def test_a_class_that_keeps_unequal_numbers_is_refused() -> None:
    @dataclass(frozen=True)
    class Uneven(Scorer):
        name: ClassVar[str] = "uneven"
        equal_counts: ClassVar[bool] = False

    with pytest.raises(PolicyError, match=r"Uneven keeps unequal numbers of slots \(equal_counts is False\)"):
        registry.register(Uneven)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points of an imagined installed package; discovery starts afresh before and after."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "evictbench.policies" else [])
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    registry._discover.cache_clear()
    return points


@dataclass(frozen=True)
class Installed(Policy):
    """Stands for a policy of another package."""

    name: ClassVar[str] = "installed"


def test_an_installed_package_adds_a_policy(
    installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(registry._discover.cache_clear)
    monkeypatch.setitem(sys.modules, "elsewhere", sys.modules[__name__])
    installed.append(EntryPoint("installed", "elsewhere:Installed", "evictbench.policies"))
    assert registry.get("installed") is Installed


def test_a_broken_installed_package_is_named(installed: list[EntryPoint], request: pytest.FixtureRequest) -> None:
    request.addfinalizer(registry._discover.cache_clear)
    installed.append(EntryPoint("gone", "no_such_package:Gone", "evictbench.policies"))
    with pytest.raises(PolicyError, match=r"installed policy 'gone' \(no_such_package:Gone\) cannot be imported"):
        registry.names()
