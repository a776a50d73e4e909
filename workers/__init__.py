"""Engines: the contract (`api`), the vLLM engine with the eviction plugin, the dense reference and the simulated engine."""
