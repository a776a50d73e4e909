"""The dense reference: a Transformers model that evicts by masking, to hold the vLLM plugin against."""
