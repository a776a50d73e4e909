"""`evictbench verify policies FILE`: run every case of a vector file through the registered policies and select.py.

A file has `cases`: {"id", "policy", "variant", "follows", "params", "inputs", "expected"}; each expected number or list
is compared, numbers to 2e-6 (1e-4 where the case computes from bf16); scores are computed in fp64 here. A policy,
variant or parameter unknown here is a failure.
Cases that follow an implementation which no registered policy stands for are computed by a plain function and printed
as `reference`. When ours evicts is the engines' own length algebra.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from policies import vectors
from policies.budget import Budget, Overflow, Protection, layout
from workers.vllm_engine.physical import Lengths, event_lengths

TOLERANCE = 2e-6
ROUNDED_TOLERANCE = 1e-4
OURS = ("spec", "blog")
FIELDS = ("id", "policy", "variant", "params", "inputs", "expected")

Finding = tuple[str, str | None, str]


def check(document: Mapping[str, Any]) -> Iterator[Finding]:
    """One (case id, None or the first difference, "ok" or "reference") per case, in file order."""
    cases = document.get("cases") if isinstance(document, Mapping) else None
    if not isinstance(cases, list) or not cases:
        yield "file", "not a file of this format: it has no cases", ""
        return
    for number, case in enumerate(cases, 1):
        name = str(case.get("id", f"case {number}")) if isinstance(case, Mapping) else f"case {number}"
        try:
            found = _found(case)
            problem = _difference(case["expected"], found.values, _tolerance(case))
            yield name, problem, "reference" if found.reference else "ok"
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}", ""


def _found(case: vectors.Case) -> vectors.Found:
    missing = [field for field in FIELDS if not isinstance(case, Mapping) or field not in case]
    if missing:
        raise ValueError(f"not a case of this format: no {', '.join(missing)}")
    if not any(not _remark(value) for value in case["expected"].values()):
        raise ValueError("not a case of this format: it expects nothing")
    vectors.check_params(case)
    case = {"follows": OURS[0], **case}
    ours = str(case["follows"]).startswith(OURS)
    if case["variant"] == "schedule" and ours:
        return _schedule(case)
    if case["variant"] == "statistics" and "generated" in case["inputs"]:
        return _event_count(case)
    return vectors.adapter(str(case["policy"]), str(case["variant"]))(case)


def _schedule(case: vectors.Case) -> vectors.Found:
    """Events as seen behind each decode forward: one falls there when it precedes the next token's forward."""
    params, inputs = case["params"], case["inputs"]
    prompt, forwards, interval = int(inputs["prompt_len"]), int(inputs["decode_forwards"]), int(params["r"])
    lengths = _lengths(int(params["K_total"]), interval, prompt, params)
    events = [
        {
            "decode_forward": n - prompt,
            "slots_before": lengths.physical(n),
            "slots_after": lengths.keep,
        }
        for n in range(prompt + 1, prompt + forwards + 1)
        if lengths.fires(n)
    ]
    total = prompt + forwards
    final = lengths.keep if lengths.fires(total) else lengths.physical(total)
    return vectors.Found({"effective_K_total": lengths.keep, "events": events, "final_slots": final})


def _lengths(keep: int, interval: int, prompt: int, params: Mapping[str, Any]) -> Lengths:
    protection = Protection.PROMPT if params.get("protect_prompt") else Protection.SINKS
    budget = Budget(keep, interval, int(params.get("recent", interval)))
    parts = layout(budget, protection, prompt, int(params.get("n_sink", 0)), Overflow.PER_ARM)
    return event_lengths(parts.keep, interval, prompt)


def _event_count(case: vectors.Case) -> vectors.Found:
    """Events of all requests, by the budget convention that the expected number is named after."""
    inputs = case["inputs"]
    prompt, generated, interval = (int(inputs[name]) for name in ("prompt", "generated", "r"))
    added = {"buffer_inside": 0, "plus_buffer": interval, "prompt_on_top": prompt}
    values = {}
    for name in case["expected"]:
        named = re.fullmatch(r"K(\d+)_(\w+)", name)
        if named and named[2] in added:
            lengths = event_lengths(int(named[1]) + added[named[2]], interval, prompt)
            values[name] = lengths.events(prompt + generated + 1) * int(inputs.get("requests", 1))
    return vectors.Found(values)


def _tolerance(case: Mapping[str, Any]) -> float:
    return ROUNDED_TOLERANCE if str(case["params"].get("dtype", "")).startswith("bf") else TOLERANCE


def _difference(wanted: Any, found: Any, tolerance: float, place: str = "") -> str | None:
    """The first difference, with its place in the expected values; None when there is none."""
    if isinstance(wanted, Mapping):
        for name, value in wanted.items():
            if not isinstance(found, Mapping) or name not in found:
                if _remark(value):
                    continue
                return f"{_inside(place, name)}: nothing computes it"
            problem = _difference(value, found[name], tolerance, _inside(place, name))
            if problem:
                return problem
        return None
    wanted, found = _same_depth(wanted, found), _same_depth(found, wanted)
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"{place}: found {_shown(found)}, expected {_shown(wanted)}"
        differences = (
            _difference(x, y, tolerance, f"{place}[{index}]")
            for index, (x, y) in enumerate(zip(wanted, found, strict=True))
        )
        return next(filter(None, differences), None)
    return None if _equal(wanted, found, tolerance) else f"{place}: found {_shown(found)}, expected {_shown(wanted)}"


def _remark(value: Any) -> bool:
    """Prose among the expected values."""
    return isinstance(value, str) and _number(value) is None


def _same_depth(value: Any, other: Any) -> Any:
    """The only row of a list of rows, where the other side leaves out the head of a single head."""
    single = isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)
    flat = not isinstance(other, list) or not other or not isinstance(other[0], list)
    return value[0] if single and flat and isinstance(other, list) else value


def _equal(wanted: Any, found: Any, tolerance: float) -> bool:
    if wanted is None or isinstance(wanted, bool):
        return found is wanted
    x, y = _number(wanted), _number(found)
    if x is None or y is None:
        return bool(wanted == found)
    if isinstance(wanted, int) and isinstance(found, int):
        return wanted == found
    if not (math.isfinite(x) and math.isfinite(y)):
        return x == y or (math.isnan(x) and math.isnan(y))
    return abs(x - y) <= tolerance


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool | list | Mapping):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
