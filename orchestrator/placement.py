"""Where engines may start: which lines of work need one, and which nodes have a place for it. Reads the books only."""

from __future__ import annotations

from collections import Counter

from orchestrator.ledger import Line, NodeEntry, Phase, State
from orchestrator.messages import Seat


def needs_engine(state: State, line: Line) -> bool:
    """True while the line has more rows to hand out than its engines have room for."""
    if not line.pending_rows or line.closed:
        return False
    workers = [state.books.workers[name] for name in line.workers]
    if workers and line.failed_starts >= state.limits.attempts:
        return False
    return line.pending_rows > sum(max(0, w.room) for w in workers)


def find_seats(state: State, line: Line) -> tuple[Seat, ...] | None:
    """Places for one more engine on the emptiest usable nodes where not too many are starting; None if there are none.

    All seats or none: engines that span nodes never wait for each other with half of what they need.
    """
    starting = Counter(
        seat.node for worker in state.books.workers.values() if worker.phase is Phase.STARTING for seat in worker.seats
    )
    most = state.limits.starting_per_node
    usable = _usable(state, line)
    open_now = [(n.free, name) for name, n in usable.items() if n.free >= line.share and starting[name] < most]
    if len(open_now) < line.engine.nodes:
        return None
    emptiest = sorted(open_now, reverse=True)[: line.engine.nodes]
    return tuple(Seat(name, line.share) for _, name in emptiest)


def why_nowhere(state: State, line: Line) -> str | None:
    """Why no engine of the line fits on the nodes even when they are empty; None if one does."""
    nodes = state.books.nodes
    large = sum(node.units >= line.share for node in nodes.values())
    if large >= line.engine.nodes:
        return None
    largest = max((node.units for node in nodes.values()), default=0)
    aside = "".join(f"; {reason}" for reason in dict.fromkeys(state.books.aside.values()))
    if line.engine.nodes == 1:
        return f"no node left: needs {line.share} places on one node, the largest has {largest}{aside}"
    return f"no nodes left: needs {line.engine.nodes} nodes with {line.share} places each, {large} have them{aside}"


def other_node_left(state: State, line: Line, node: str) -> bool:
    """True when engines of the line could do without this node."""
    others = [n for name, n in state.books.nodes.items() if name != node and not n.quarantined]
    return sum(n.units >= line.share for n in others) >= line.engine.nodes


def _usable(state: State, line: Line) -> dict[str, NodeEntry]:
    large = {name: node for name, node in state.books.nodes.items() if node.units >= line.share}
    trusted = {name: node for name, node in large.items() if not node.quarantined}
    # A quarantined node is better than none.
    return trusted if len(trusted) >= line.engine.nodes else large
