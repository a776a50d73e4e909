"""Probes: what a model can still recall after eviction, with facts planted, pinned to heads, or left to a policy."""
