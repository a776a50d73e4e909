"""A simulated engine with one Ray task per bundle of its placement group, as vLLM's Ray executor has ranks."""

from __future__ import annotations

from dataclasses import replace

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workers.api import EngineSpec, Provenance
from workers.simulated import CostModel, SimulatedEngine


@ray.remote(num_gpus=1, num_cpus=0)
def _rank() -> str:
    return f"{ray.get_runtime_context().get_node_id()}:{ray.get_gpu_ids()[0]}"


class RankedEngine(SimulatedEngine):
    """Its `gpus` are what the ranks saw, in the order of the bundles."""

    def start(self) -> Provenance:
        """As SimulatedEngine.start, after every rank has answered."""
        group = get_current_placement_group()
        seats = [PlacementGroupSchedulingStrategy(group, index) for index in range(group.bundle_count)]
        ranks = ray.get([_rank.options(scheduling_strategy=seat).remote() for seat in seats], timeout=120)
        return replace(super().start(), extra={"gpus": tuple(ranks)})


def create(spec: EngineSpec) -> RankedEngine:
    """For Launch.create."""
    return RankedEngine(spec, CostModel(load=0.0))
