"""`python -m orchestrator` is `evictbench`."""

from orchestrator.cli import main

main(prog_name="evictbench")
