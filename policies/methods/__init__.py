"""One file per policy. Every module here is imported by the registry and may import the standard library only."""
