"""Engines: the contract (`api`), vLLM with the eviction plugin, the dense reference and the simulated engine."""
