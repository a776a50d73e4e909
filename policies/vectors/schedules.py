"""When other implementations evict: plain functions, for comparison; ours is the engines' length algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.vectors import Case, Found

Simulation = Callable[[int, int, int, int], tuple[list[dict[str, int]], int]]
"""(prompt, decode forwards, budget, period) -> events, and the slots cached at the end; forward 0 is the prompt's."""


def foreign(case: Case) -> Found:
    """Events of the implementation that the case follows. Raises LookupError for one that is not known."""
    params, inputs = case["params"], case["inputs"]
    budget = int(params.get("budget", params.get("token_budget", params.get("K_total", 0))))
    period = int(params.get("divide_length", params.get("residual", params.get("r", 0))))
    prompt, forwards = int(inputs["prompt_len"]), int(inputs["decode_forwards"])
    for name, simulate in _SIMULATIONS.items():
        if str(case["follows"]).startswith(name):
            events, final = simulate(prompt, forwards, budget, period)
            return Found({"events": events, "final_slots": final}, reference=True)
    raise LookupError(f"no schedule of '{case['follows']}'; known: {', '.join(_SIMULATIONS)}, and ours: spec, blog")


def _after(fires: Callable[[int, int, int, int], bool]) -> Simulation:
    """Evict behind a forward when fires(slots, total tokens, budget, period)."""

    def simulate(prompt: int, forwards: int, budget: int, period: int) -> tuple[list[dict[str, int]], int]:
        events: list[dict[str, int]] = []
        slots = prompt
        for forward in range(1, forwards + 1):
            slots += 1
            if fires(slots, prompt + forward, budget, period):
                events.append(_event(forward, slots, budget))
                slots = budget
        return events, slots

    return simulate


def _before(prompt: int, forwards: int, budget: int, period: int) -> tuple[list[dict[str, int]], int]:
    """TriAttention in vLLM: ahead of a forward whose token would reach budget + period."""
    events: list[dict[str, int]] = []
    slots = prompt
    for forward in range(1, forwards + 1):
        if slots + 1 >= budget + period:
            events.append(_event(forward, slots, budget))
            slots = budget
        slots += 1
    return events, slots


def _flagged(prompt: int, forwards: int, budget: int, period: int) -> tuple[list[dict[str, int]], int]:
    """R-KV's code: a flag set by the running token count acts in the next forward; the first prompt counts as flagged.

    A compression appends its own token first. Without a longer cache than the budget it evicts nothing.
    """
    events: list[dict[str, int]] = []
    slots, flag = 0, True
    for forward in range(forwards + 1):
        slots += prompt if forward == 0 else 1
        if flag and slots >= budget:
            events.append(_event(forward, slots, budget))
            slots = budget
        flag = (prompt + forward) % period == 0
    return events, slots


def _event(forward: int, before: int, after: int) -> dict[str, int]:
    return {"decode_forward": forward, "slots_before": before, "slots_after": after}


_SIMULATIONS: Mapping[str, Simulation] = {
    "VaSE": _after(lambda slots, total, budget, period: slots > budget and slots % period == 0),
    "R-KV HF": _flagged,
    "TriAttention HF CLI": _after(lambda slots, total, budget, period: slots >= budget + period),
    "TriAttention HF without slack": _after(
        lambda slots, total, budget, period: slots >= budget and total % period == 0
    ),
    "TriAttention vLLM": _before,
}
