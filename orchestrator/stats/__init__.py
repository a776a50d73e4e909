"""Paired statistics on problems: pure functions of numpy arrays (contracts.md section 6)."""
