"""Train the embedded reasoner from scratch on the CPU: `make reasoner`, or python -m infra.reasoner.train.

About an hour on one free core. Interrupt it as you like: the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from infra.reasoner.export import export
from infra.reasoner.recipe import Recipe
from infra.reasoner.training import Run


def line(run: Run, began_step: int, began: float) -> str:
    """One line of progress: step, stage, smoothed losses, speed and what is left."""
    progress, total = run.progress, run.recipe.steps
    elapsed, taken = time.monotonic() - began, progress.step - began_step
    left = elapsed / max(taken, 1) * (total - progress.step)
    speed = taken * run.recipe.whole.tokens / elapsed
    stage = run.recipe.stage_of(min(progress.step, total - 1))[0] + 1
    losses = "  ".join(f"{kind} {loss:.4f}" for kind, loss in sorted(progress.losses.items()))
    return f"step {progress.step}/{total}  stage {stage}  loss {losses}  {speed:,.0f} tokens/s  {_clock(left)} left"


def train(run: Run, report_every: float, save_every: float) -> None:
    """Step until the recipe is done; a line every `report_every` s, the state saved every `save_every` s."""
    began_step, began = run.progress.step, time.monotonic()
    reported = saved = tick = began
    try:
        while not run.done:
            run.step()
            now = time.monotonic()
            run.progress.seconds += now - tick
            tick = now
            if now - reported >= report_every:
                reported = now
                print(line(run, began_step, began), flush=True)
            if now - saved >= save_every:
                saved = now
                run.save()
    finally:  # also on Ctrl-C: a step is never half taken
        run.save()


def main() -> None:
    """Train, then export to --output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".cache/reasoner"), help="state of the run, to go on from")
    parser.add_argument("--output", type=Path, default=None, help="checkpoint directory; default WORK/checkpoint")
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--threads", type=int, default=1, help="more only on a machine with nothing else to do")
    parser.add_argument("--report-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--save-every", type=float, default=60.0, metavar="SECONDS")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        run = Run(replace(Recipe(), seed=args.seed), args.work / "state.pt")
    except ValueError as error:
        sys.exit(str(error))
    print(f"recipe {run.recipe.fingerprint}, step {run.progress.step} of {run.recipe.steps}; first steps compile")
    try:
        train(run, args.report_every, args.save_every)
    except KeyboardInterrupt:
        sys.exit(f"\nstopped at step {run.progress.step}; the same command goes on from there")
    output = args.output or args.work / "checkpoint"
    progress = run.progress
    facts = {
        "recipe": run.recipe.fingerprint,
        "seed": args.seed,
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds),
        "threads": args.threads,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "losses_nats_per_token": {kind: round(loss, 5) for kind, loss in sorted(progress.losses.items())},
    }
    export(run.model.state_dict(), run.recipe.sizes, output, facts)
    print(f"wrote {output} after {_clock(progress.seconds)} of training on {progress.tokens:,} tokens")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


if __name__ == "__main__":
    main()
