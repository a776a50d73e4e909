"""What storms found: one line of JSON per storm, so that a run resumes by its seed range, and the page of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

BEGIN, END = "<!-- storms: begin -->", "<!-- storms: end -->"


@dataclass
class Tally:
    """Over some campaigns: faults that counted by kind, those that found nothing in flight, and what went wrong.

    assigned  chunks handed out, chunks = those of the plan: the difference was done again
    """

    campaigns: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    idle: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    ungraded: int = 0
    hung: int = 0
    leaked: int = 0
    assigned: int = 0
    chunks: int = 0
    overworked: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing lost, doubled, hung or leaked, and repeated work within its bound."""
        return not (self.lost or self.doubled or self.ungraded or self.hung or self.leaked or self.overworked)

    @property
    def faults(self) -> int:
        """Faults that counted."""
        return sum(self.counted.values())

    def add(self, other: Tally) -> None:
        """Take in the storms of another."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                self.counted.update(value)
            else:
                setattr(self, name, getattr(self, name) + value)


class Results:
    """A folder of storms: <backend>.jsonl."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def record(self, backend: str, seed: int, tally: Tally) -> None:
        """Add one storm."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{backend}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"seed": seed, **vars(tally)}) + "\n")

    def storms(self, backend: str) -> dict[int, Tally]:
        """Recorded storms by seed."""
        try:
            lines = (self._folder / f"{backend}.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        found = {}
        for line in lines:
            facts = json.loads(line)
            seed = facts.pop("seed")
            found[seed] = Tally(**{**facts, "counted": Counter(facts["counted"])})
        return found

    def backends(self) -> list[str]:
        """Backends with storms."""
        return sorted(path.stem for path in self._folder.glob("*.jsonl"))


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of some storms."""
    found = Tally()
    for tally in tallies:
        found.add(tally)
    return found


def sentence(tally: Tally) -> str:
    """One paragraph of figures."""
    repeated = tally.assigned - tally.chunks
    return (
        f"{tally.campaigns} campaigns, {tally.rows:,} rows: {tally.lost} lost, {tally.doubled} doubled, "
        f"{tally.ungraded} ungraded; {tally.hung} hung, {tally.leaked} processes left. {tally.assigned:,} chunks were "
        f"handed out for {tally.chunks:,} ({repeated:,} again), over the bound in {tally.overworked} campaigns. "
        f"{tally.idle} faults found nothing in flight and do not count. {tally.seconds / 60:.1f} min."
    )


def page(by_backend: dict[str, Tally]) -> str:
    """The tables of docs/faults.md."""
    kinds = sorted({kind for tally in by_backend.values() for kind in tally.counted})
    lines = ["| fault | " + " | ".join(by_backend) + " |", "|---|" + "---:|" * len(by_backend)]
    for kind in kinds:
        counts = (tally.counted[kind] for tally in by_backend.values())
        lines.append(f"| {kind} | " + " | ".join(f"{count:,}" if count else "" for count in counts) + " |")
    lines.append("| **all** | " + " | ".join(f"**{tally.faults:,}**" for tally in by_backend.values()) + " |")
    for backend, tally in by_backend.items():
        lines += ["", f"**{backend}**: {sentence(tally)}", *(f"- {line}" for line in tally.broken)]
    return "\n".join(lines)


def write(path: Path, by_backend: dict[str, Tally]) -> None:
    """Replace what stands between the marks of a page. Raises ValueError where it has none."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} lacks {BEGIN} or {END}")
    path.write_text(f"{before}{BEGIN}\n{page(by_backend)}\n{END}{after}", encoding="utf-8")
