"""Entry point of group `vllm.general_plugins`; vLLM calls it once in every process it starts.

It only makes the cache spec known, so that a scheduler process can build its manager. Nothing in vLLM uses that spec
unless an engine is started with EvictingCPUWorker and our key in additional_config: without them the plugin is inert.
"""

from __future__ import annotations


def register() -> None:
    """Register EvictingAttentionSpec and its manager with vLLM; safe to repeat."""
    # vLLM only warns about a plugin that fails to import; imports stay inside so that a failure propagates.
    from workers.vllm_engine.cache_spec import register_spec  # noqa: PLC0415

    register_spec()
