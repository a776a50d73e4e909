"""Checks of this installation against a file of cases: one module per kind, each with `check(document)`."""
