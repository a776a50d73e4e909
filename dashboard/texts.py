"""Transcripts as HTML: always escaped, two of them split at the first place where they differ."""

from __future__ import annotations

from html import escape

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


def panel(text: str, shared: int = 0, start: int = 0) -> str:
    """One transcript: the part up to `shared` greyed, the rest highlighted; WINDOW characters from `start` on."""
    end = min(len(text), start + WINDOW)
    split = min(max(shared, start), end)
    parts = ["… " if start else ""]
    if split > start:
        parts.append(f'<span class="same">{escape(text[start:split])}</span>')
    if end > split:
        kind = "differs" if shared else ""
        parts.append(f'<span class="{kind}">{escape(text[split:end])}</span>')
    parts.append(" …" if end < len(text) else "")
    return f'<div class="eb-text">{"".join(parts)}</div>'
