"""Eviction policies: what to score, what to keep, keyed randomness and the kernels.

Knows tensors and nothing else. Modules directly imported by planners (budget, base, registry, methods/*) use the
standard library only; tensor code is reached by dotted name, so that a job can be validated without torch.
"""
