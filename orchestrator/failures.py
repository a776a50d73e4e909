"""What the user is told when engines and chunks fail, and what a dead engine said last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.backend import Lost
from orchestrator.messages import Action, Failed, Quarantine, SetAside, WorkerState
from orchestrator.store.campaign import Campaign


def sentences(actions: Sequence[Action]) -> Iterator[str]:
    """One line per reason, however many chunks it hit; nodes and GPUs that get no more engines."""
    for action in actions:
        match action:
            case Quarantine(node, reason):
                yield f"node {node} gets no more engines after two bad ends in a row: {reason}"
            case SetAside(_, node, gpus, reason):
                yield f"{', '.join(gpus)} of node {node} set aside, held by other processes at two starts: {reason}"
    failures = [action for action in actions if isinstance(action, Failed)]
    for (reason, parked), hit in Counter((failed.reason, failed.parked) for failed in failures).items():
        fate = "parked" if parked else "will be tried again"
        yield f"{hit} chunk{'s' * (hit != 1)} {fate}: {reason}"


def last_words(campaign: Campaign, lost: Lost) -> str:
    """Why a worker ended: what it said of itself, else the last line that it printed, else what was seen from here."""
    facts = next((facts for facts in campaign.live() if facts["engine_id"] == lost.worker), {})
    if facts.get("state") == WorkerState.FAILED.value:
        return str(facts["detail"])
    if facts or lost.unplaced:
        return lost.reason
    # It ended before its first heartbeat: only its output can tell why.
    log = campaign.log(lost.worker)
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"{lost.reason}: {said[-1]}" if said else lost.reason
