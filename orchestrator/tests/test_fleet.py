"""Which machines a job may use, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from orchestrator import fleet
from orchestrator.backend import Backend, Machine
from orchestrator.errors import UserError
from orchestrator.tests.doubles import SPEC

HEAD = Machine("h", 1, {"host": "head"})
SMALL = Machine("s", 2, {"host": "small"}, gpu="A100")
LARGE = Machine("l", 8, {"host": "large"}, gpu="H200")
UNLABELLED = Machine("u", 4, {"host": "unlabelled"}, gpu="")


def names(machines: Sequence[Machine]) -> list[str]:
    return [machine.name for machine in machines]


def test_a_node_without_gpus_holds_engines_only_where_no_node_has_any() -> None:
    assert names(fleet.usable([HEAD, SMALL], "any")) == ["s"]
    assert names(fleet.usable([HEAD], "any")) == ["h"]
    assert fleet.usable([replace(HEAD, units=0)], "any") == []


def test_a_kind_is_chosen_by_label_and_an_unlabelled_gpu_is_trusted() -> None:
    assert names(fleet.usable([HEAD, SMALL, LARGE, UNLABELLED], "h200")) == ["l", "u"]
    assert fleet.usable([HEAD], "H200") == []


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_an_engine_inside_one_node_fits_up_to_its_gpus(tp: int) -> None:
    assert fleet.refusal([replace(SPEC, tp=tp)], [HEAD, LARGE], "H200") is None


def test_too_many_gpus_name_the_largest_node_and_the_way_out() -> None:
    reason = fleet.refusal([SPEC, replace(SPEC, tp=4)], [HEAD, SMALL], "any")
    assert reason == (
        "resources: an engine of tp 4 x pp 1 needs 4 GPUs on one node; the largest node, small, has 2. "
        "Lower resources.tp or pp, or spread an engine with resources.nodes."
    )


def test_an_engine_over_nodes_needs_that_many_large_ones() -> None:
    spec = replace(SPEC, tp=8, pp=2, nodes=2)
    assert fleet.refusal([spec], [LARGE, replace(LARGE, name="l2")], "H200") is None
    reason = fleet.refusal([spec], [LARGE, SMALL], "any")
    assert reason is not None
    assert "spans 2 nodes with 8 GPUs each; 1 of 2 nodes have that many (the largest, large, has 8)" in reason


def test_a_missing_kind_lists_what_is_there() -> None:
    reason = fleet.refusal([SPEC], [HEAD, SMALL, LARGE, LARGE], "H20")
    assert reason == (
        "resources.gpu: no node has a H20; the cluster has A100 (1 node), H200 (2 nodes), no GPU (1 node). "
        "Did you mean 'H200'? Name one of these, or any."
    )
    reason = fleet.refusal([SPEC], [], "any")
    assert reason is not None
    assert "no node that can hold an engine" in reason


class Growing:
    """A cluster whose large node comes up at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def machines(self) -> list[Machine]:
        self.looks += 1
        return [HEAD, SMALL] if self.looks < 3 else [HEAD, SMALL, LARGE]


def test_nodes_are_waited_for_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_LOOK_SECONDS", 0.0)
    said: list[str] = []
    wanted = [replace(SPEC, tp=8)]
    fleet.gather(cast("Backend", Growing()), wanted, "any", 60.0, said.append)
    assert len(said) == 1
    assert said[0].startswith("waiting up to 60 s for nodes: resources: an engine of tp 8")
    with pytest.raises(UserError, match="largest node, small, has 2"):
        fleet.gather(cast("Backend", Growing()), wanted, "any", 0.0, said.append)
