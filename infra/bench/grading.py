"""Grading throughput: `python infra/bench/grading.py [--grades 4000] [--processes 2]`.

Grades made-up answers in processes of their own, as a campaign does: per 100 answers 80 to mathematics (48 written as
the gold is, 12 in another form, 15 wrong numbers, 5 that only algebra can tell apart), 10 integers, 10 letters. Every
pair occurs once, so no cache helps. Then the price of expressions that never end, each graded once.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable

from orchestrator.tasks.base import Grade
from orchestrator.tasks.graders import integers, letters, math
from orchestrator.tasks.graders.symbolic import CHECKER, CPU_SECONDS, SymbolicTimeout

Grader = Callable[[str, str, str], Grade]
THOUGHT = "So we add the parts, check the sign, and simplify once more. " * 40
GRADERS: dict[str, Grader] = {"math": math.grade, "integer": integers.grade, "letter": letters.grade}
TOWER = r"9^{9^{9^{9^{9}}}}"


def answers(seed: int, count: int) -> list[tuple[str, str, str]]:
    """(grader, gold, generated text) in the mix that the module names."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        a, b, c = draw.randint(2, 9_999), draw.choice([2, 3, 5, 7, 11, 13]), draw.randint(2, 99)
        kind = draw.randrange(100)
        if kind < 10:
            made.append(("letter", "B", f"The correct answer is ({draw.choice('ABCD')})."))
        elif kind < 20:
            made.append(("integer", str(a % 1000), f"\\boxed{{{(a + draw.randint(0, 1)) % 1000:03d}}}"))
        elif kind < 68:
            gold = draw.choice([f"{a}", f"\\frac{{{a}}}{{{b}}}", f"{c}\\sqrt{{{b}}}", f"({c},{a})", f"x^{c}+{a}"])
            made.append(("math", gold, f"\\boxed{{{gold}}}"))
        elif kind < 80:
            other = draw.choice([f"\\dfrac{{{a * c}}}{{{b * c}}}", f"{a}/{b}", f"\\tfrac{{{a}}}{{{b}}}"])
            made.append(("math", f"\\frac{{{a}}}{{{b}}}", f"\\boxed{{{other}}}"))
        elif kind < 95:
            made.append(("math", str(a), f"\\boxed{{{a + draw.randint(1, 50)}}}"))
        else:
            made.append(("math", f"{c}\\sqrt{{{b}}}+{a}", f"\\boxed{{{a}+\\sqrt{{{b * c * c + draw.randint(0, 1)}}}}}"))
    return [(grader, gold, f"<think>{THOUGHT}</think>\nThus {text}") for grader, gold, text in made]


def work(seed: int, count: int, ready: object, verdicts: object) -> None:
    """One process: warm up its algebra, wait for the others, grade."""
    math.grade("x+1", "\\boxed{1+x}", "stop")
    items = answers(seed, count)
    ready.wait()  # type: ignore[attr-defined]
    started = time.perf_counter()
    found = Counter(GRADERS[grader](gold, text, "stop").method for grader, gold, text in items)
    verdicts.put((time.perf_counter() - started, found))  # type: ignore[attr-defined]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grades", type=int, default=4_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hanging", type=int, default=2, help="expressions that never end")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ready, verdicts = context.Barrier(given.processes), context.Queue()
    share = given.grades // given.processes
    workers = [context.Process(target=work, args=(seed, share, ready, verdicts)) for seed in range(given.processes)]
    for worker in workers:
        worker.start()
    results = [verdicts.get() for _ in workers]
    for worker in workers:
        worker.join()
    slowest = max(seconds for seconds, _ in results)
    total: Counter[str] = sum((found for _, found in results), Counter())
    rate = 60 * share * given.processes / slowest
    print(f"{share * given.processes:,} answers, {given.processes} processes, {slowest:.1f} s: {rate:,.0f} grades/min")
    print("decided by " + ", ".join(f"{method} {count}" for method, count in total.most_common()))
    for number in range(given.hanging):
        started = time.perf_counter()
        with contextlib.suppress(SymbolicTimeout):
            CHECKER.equal(str(number), TOWER)
        spent = time.perf_counter() - started
        print(f"never ends: given up after {spent:.1f} s (limit {2 * CPU_SECONDS:g} s, and the start of a process)")


if __name__ == "__main__":
    main()
