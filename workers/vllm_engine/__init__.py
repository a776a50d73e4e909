"""The eviction plugin for vLLM and the engine built on it. Importing this package imports neither vllm nor torch."""
