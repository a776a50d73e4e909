"""Grading rules: what counts as the answer in a text, and when two answers are equal.

Conventions, where reasonable graders differ (each is a case marked `policy` in tests/grader_cases.json):
  * only what follows the last `</think>` is read; a thought that never closes holds no answer
  * the last balanced box wins, an empty one is no answer; without any box an answer declared in words counts
  * several boxes joined by commas or "and" are one answer when the gold has as many parts
  * a unit, percent or degree sign may be missing; another one is wrong (36 degrees, not 36 dollars)
  * the base of a number may be missing when the gold has it; a number in another base counts by its value
  * `-2,1` is not the interval `(-2,1)`; an inequality in one variable is an interval; ratios may be reduced
  * a decimal counts for an exact value from six significant digits on; an exact form never counts for a rounded gold
  * single letters keep their case, words do not
  * a pair that algebra cannot decide in its time is `error`, not `wrong`
"""
