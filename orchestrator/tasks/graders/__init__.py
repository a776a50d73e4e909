"""Grading rules: what counts as the answer in a text, and when two answers are equal."""
