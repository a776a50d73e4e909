"""VaSE under prompt protection as arXiv 2609.03430 combines them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.methods.vase import VaSE
from policies.registry import register


@register
@dataclass(frozen=True)
class VaSEOfPaper(VaSE):
    """As `vase`, but a protected prompt leaves n_large whole: min(n_large, selectable) candidates stay for their width.

    The sinks lie in the prompt and are no longer special. Where no more than the sinks is protected this is `vase`.
    """

    name: ClassVar[str] = "vase_paper"

    def widest(self, keep: int, prot: int, n_select: int) -> int:
        """As VaSE.widest."""
        if prot <= self.n_sink:
            return super().widest(keep, prot, n_select)
        return min(self._large(keep), n_select)
