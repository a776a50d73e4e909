"""Transcripts as HTML: always escaped, two of them split at the first place where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from dashboard.shading import Stretch

# Characters of a text that are put on a page at once; longer ones are shown from the wanted place on.
WINDOW = 20_000


def first_difference(left: str, right: str) -> int:
    """Index of the first character that differs, moved back to the start of its word; the common length if none does.

    Words stand in for tokens: the store holds texts, and a word boundary never splits what both sides share.
    """
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    if shared == len(left) == len(right):
        return shared
    while shared > 0 and not left[shared - 1].isspace():
        shared -= 1
    return shared


def panel(text: str, shared: int = 0, start: int = 0, stretches: Sequence[Stretch] = ()) -> str:
    """One transcript: the part up to `shared` greyed, the rest highlighted; WINDOW characters from `start` on.

    stretches shade the text by what the cache still held of it; a stretch that is gone in every head is struck through.
    """
    end = min(len(text), start + WINDOW)
    split = min(max(shared, start), end)
    inside = {edge for one in stretches for edge in (one.start, one.end) if start < edge < end}
    cuts = sorted({start, split, end} | inside)
    parts = ["… " if start else ""]
    for first, last in pairwise(cuts):
        kind = "same" if last <= split else "differs" if shared else ""
        held = next((one for one in stretches if one.start <= first < one.end), None)
        hover = ""
        if held is not None:
            kind += f" held-{held.level}"
            hover = f' title="age {escape(held.age)} tokens: held by {100 * held.share:.0f} % of heads at the end"'
        parts.append(f'<span class="{kind.strip()}"{hover}>{escape(text[first:last])}</span>')
    parts.append(" …" if end < len(text) else "")
    return f'<div class="eb-text">{"".join(parts)}</div>'
