"""Where engines may start: which lines of work need one, and which node has a place for it. Reads the books only."""

from __future__ import annotations

from orchestrator.ledger import Line, Phase, State


def needs_engine(state: State, line: Line) -> bool:
    """True while the line has more rows to hand out than its engines have room for."""
    if not line.pending_rows or line.closed:
        return False
    workers = [state.books.workers[name] for name in line.workers]
    if workers and line.failed_starts >= state.limits.attempts:
        return False
    return line.pending_rows > sum(max(0, w.room) for w in workers)


def free_node(state: State, line: Line) -> str | None:
    """Emptiest usable node with enough free places and not too many engines starting."""
    starting: dict[str, int] = {}
    for worker in state.books.workers.values():
        starting[worker.node] = starting.get(worker.node, 0) + (worker.phase is Phase.STARTING)
    large = {name: node for name, node in state.books.nodes.items() if node.units >= line.units}
    # A quarantined node is better than none.
    usable = {name: node for name, node in large.items() if not node.quarantined} or large
    most = state.limits.starting_per_node
    fits = [(n.free, name) for name, n in usable.items() if n.free >= line.units and starting.get(name, 0) < most]
    return max(fits)[1] if fits else None
