"""Mathematical answers in LaTeX: rules that decide by form first, algebra in a killable process last.

Order of the rules (each either decides or passes on): equal text, choice letters, words, bases, ratios, quantities,
assignments, lists and tuples and intervals, matrices, guards against expressions that explode, algebra.
"""

from __future__ import annotations

import re
from functools import lru_cache

from orchestrator.tasks.base import Grade, Verdict
from orchestrator.tasks.graders import values
from orchestrator.tasks.graders.answers import boxes, grade_answer, unboxed
from orchestrator.tasks.graders.latex import bracketed, compact, depth, normalise, split
from orchestrator.tasks.graders.symbolic import CHECKER, SymbolicTimeout

VERSION = 3
MAX_LENGTH = 500
MAX_DEPTH = 50
_BETWEEN = re.compile(r"[\s$,;]*(?:and|or)?[\s$,;]*")
_LABEL = re.compile(r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?'?(?:\((?:[a-zA-Z]=)?-?\w+(?:,-?\w+)*\))?(?:[+\-]?[a-zA-Z])*")
# towers of three powers, factorials of and powers to millions, binomials of powers: quick to write, never computed
EXPLOSIVE = re.compile(
    r"\^\s*\{[^{}]*\^\s*\{?[^{}]*\^|\d{6,}\s*!|\^\s*\{?\s*\d{7,}"
    r"|\\binom\s*\{[^}]*(?:\d{6,}|\d\s*\^\s*\{?\s*\d)"
)
_NOTHING = r"(?:there (?:is|are) )?no (?:real )?(?:solutions?|roots?)|(?:the )?empty set"
_SET_BUILDER = re.compile(r"^\\\{\s*[a-zA-Z]\s*(?:\\mid|\\vert|[|:])\s*(.*[<>]|.*\\[lg]e(?![a-z])).*\\\}$")
_NUMBERS_AS_TEXT = re.compile(r"^\\text\s*\{([-+\d\s,./;]*(?:(?:and|or)[-+\d\s,./;]*)+)\}$")
_SMALL_POWER = re.compile(r"\{\s*(\d{1,3})\s*\^\s*(?:\{\s*(\d{1,2})\s*\}|(\d))\s*\}")
_FUNCTION = re.compile(r"y|[a-zA-Z]\(x\)")
_LEAD = re.compile(
    r"^\\text\s*\{[^{}]*\b(?:answer|result|is|equals|about|approximately)\b[^{}]*\}\s*(?=.)", re.IGNORECASE
)
_FRENCH = re.compile(r"([\[\]])([^\[\],;]+)([,;])([^\[\],;]+)([\[\]])")
_EVERYTHING = r"all real numbers|(?:the )?(?:set of )?(?:all )?reals?"
_DEGREES = re.compile(r"\\(sin|cos|tan|cot|sec|csc)\s*[({]?\s*(\d+)\s*\^\\circ\s*[)}]?")
_INEQUALITY = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|<|>")
Decision = tuple[bool, str]


def grade(gold: str, text: str, finish_reason: str) -> Grade:
    """Grade one generation; a pair that algebra cannot decide in its time is `error`, not `wrong`."""
    try:
        return grade_answer(text, finish_reason, lambda part: find(part, gold), lambda answer: equal(gold, answer))
    except SymbolicTimeout as error:
        return Grade(Verdict.ERROR, None, f"symbolic: {error}", 0.0)


def find(part: str, gold: str) -> str | None:
    """The last box; several joined ones for a gold of several parts; without any box an answer declared in words."""
    found = boxes(part)
    if not found:
        return unboxed(part)
    parts = split(normalise(gold), ",") if bracketed(normalise(gold)) is None else []
    run = [found[-1]]
    for box in reversed(found[:-1]):
        if len(run) >= len(parts) or not _BETWEEN.fullmatch(part[box[1] : run[0][0]]):
            break
        run.insert(0, box)
    contents = [content.strip() for _, _, content in run]
    if len(parts) > 1 and len(contents) == len(parts) and len(set(contents)) == len(contents):
        return ", ".join(contents)
    return contents[-1] or None


@lru_cache(maxsize=65536)
def equal(gold: str, answer: str) -> Decision:
    """(whether the answer means the gold, rule that decided). Raises SymbolicTimeout."""
    return _equal(normalise(gold), normalise(_last_form(answer)))


def _last_form(answer: str) -> str:
    r"""`exact \approx decimal` counts as its exact side, `\approx x` as x, `a \Rightarrow b` as b."""
    answer = re.split(r"\\(?:Rightarrow|implies|Longrightarrow)(?![a-zA-Z])|⇒", answer)[-1]
    sides = [side for side in re.split(r"\\approx(?![a-zA-Z])|≈", answer) if side.strip()]
    return sides[0] if sides else answer


def _equal(gold: str, answer: str) -> Decision:
    if _squeezed(gold) == _squeezed(answer):
        return True, "text"
    gold, answer = (_plainer(text) for text in (gold, answer))
    rules = (_choice, _words, _based, _ratio, _angle, _quantity, _relation, _assignment, _vector, _collection, _matrix)
    for rule in rules:
        decision = rule(gold, answer)
        if decision is not None:
            return decision
    if len(gold) > MAX_LENGTH or len(answer) > MAX_LENGTH or depth(answer) > MAX_DEPTH:
        return False, "guard: too long"
    if EXPLOSIVE.search(answer) or EXPLOSIVE.search(gold) or re.search(r"\d{1000}", answer):
        return False, "guard: explosive"
    return CHECKER.equal(_for_algebra(gold), _for_algebra(answer)), "symbolic"


def _plainer(text: str) -> str:
    """Without lead-in words and set builders, numbers in text as numbers, small powers in exponents computed."""
    text = _NUMBERS_AS_TEXT.sub(r"\1", _LEAD.sub("", text))
    if _SET_BUILDER.fullmatch(text):
        text = re.split(r"\\mid|\\vert|[|:]", text, maxsplit=1)[1].removesuffix("\\}").strip()
    computed = _SMALL_POWER.sub(_power, text)
    while computed != text:
        text, computed = computed, _SMALL_POWER.sub(_power, computed)
    return _FRENCH.sub(_facing, text)


def _power(found: re.Match[str]) -> str:
    value = int(found[1]) ** int(found[2] or found[3])
    return f"{{{value}}}" if value < 1000 else found[0]


def _for_algebra(text: str) -> str:
    """Spellings that the algebra library reads otherwise: `1,000`, `2(3)`, degrees in a trigonometric function."""
    if (whole := values.number(text)) is not None and "," in text and whole[0].denominator == 1:
        return str(whole[0])
    text = re.sub(r"(?<=\d)\s*\((?=[^,]*\))", r"\\cdot (", text)
    return _DEGREES.sub(r"\\\1(\\frac{\2\\pi}{180})", text)


def _squeezed(text: str) -> str:
    """Without white space, except between digits: `1 2` is not 12."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _facing(found: re.Match[str]) -> str:
    """`]0,1[` with brackets that face inwards; others as they are."""
    left, low, comma, high, right = found.groups()
    if left == "[" and right == "]":
        return found[0]
    return f"{'(' if left == ']' else '['}{low}{comma}{high}{')' if right == '[' else ']'}"


def _plain_word(text: str) -> str | None:
    """The words of an answer that is nothing but words, without \text and brackets; None for anything else."""
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    bare = re.sub(r"\s+", " ", bare).strip().strip("()").strip(" .")
    bare = re.sub(r"^(?:an?|the)\s+(?=[a-z]{2})", "", bare, flags=re.IGNORECASE)
    worded = "\\text" in text or re.search("[A-Za-z]{2}", bare)
    return bare if worded and re.fullmatch(r"[A-Za-z][A-Za-z '\-]*", bare) else None


def _spelled(text: str) -> str:
    """An answer as letters, digits and signs, whatever is set as text."""
    return compact(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)).casefold()


def _word_list(text: str) -> list[str]:
    """The words of `A and C` or `\\text{I, II}`, folded; empty for anything that is not several words."""
    bare = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    parts = [part.strip() for part in re.split(r",|\band\b", bare) if part.strip()]
    worded = len(parts) > 1 and all(re.fullmatch(r"[A-Za-z][A-Za-z ]*", part) for part in parts)
    return [part.casefold() for part in parts] if worded and ("\\text" in text or parts[0][0].isupper()) else []


def _choice(gold: str, answer: str) -> Decision | None:
    bare = re.fullmatch(r"\(?\s*(?:\\text\{)?\s*\(?([A-Z])\)?\s*\}?\s*\)?", gold)
    if bare is None or bare[0] == bare[1]:
        return None
    given = re.sub(r"\\text\{|[{}()\s.]", "", answer)
    named = re.match(r"\(([A-Z])\)\s", answer)  # `(A) 5`: the letter with its option
    return bare[1] in (given.upper(), named[1] if named else ""), "choice"


def _words(gold: str, answer: str) -> Decision | None:
    if re.fullmatch("[a-zA-Z]", gold) and re.fullmatch("[a-zA-Z]", answer):
        return gold == answer, "symbol"
    if re.fullmatch("[a-z]{2}", gold) and re.fullmatch("[a-z]{2}", answer):
        return sorted(gold) == sorted(answer), "symbols"  # a product; capital letters name a segment
    if "\\text" in gold + answer and _spelled(gold) == _spelled(answer):
        return True, "words"
    if _nothing(gold) and _nothing(answer):
        return True, "words"
    if compact(gold) in ("\\mathbb{R}", "(-\\infty,\\infty)") and re.fullmatch(
        _EVERYTHING, _plain_word(answer) or "", re.IGNORECASE
    ):
        return True, "words"
    lists = [_word_list(text) for text in (gold, answer)]
    if lists[0] and lists[1]:
        return sorted(lists[0]) == sorted(lists[1]), "words"
    wanted, given = _plain_word(gold), _plain_word(answer)
    if wanted is None and given is None:
        return None
    if wanted is None:
        # words where a value is wanted; single letters and names such as AB may still be symbols of the gold
        return (False, "words") if " " in (given or "") or "\\text" in answer else None
    if given is None:
        inside = re.sub(r"\s+", "", answer)
        return None if wanted.isupper() or "=" in inside else (False, "words")
    return wanted.replace("-", " ").casefold() == given.replace("-", " ").casefold(), "words"


def _nothing(text: str) -> bool:
    words = re.fullmatch(_NOTHING, _plain_word(text) or "", re.IGNORECASE)
    return words is not None or compact(text) in ("\\emptyset", "\\{\\}")


def _based(gold: str, answer: str) -> Decision | None:
    decision = values.equal_based(gold, answer)
    return None if decision is None else (decision, "base")


def _ratio(gold: str, answer: str) -> Decision | None:
    decision = values.equal_ratios(gold, answer)
    return None if decision is None else (decision, "ratio")


def _angle(gold: str, answer: str) -> Decision | None:
    """Degrees on one side, a multiple of pi on the other."""
    sides = [values.quantity(text) for text in (gold, answer)]
    for side, other in ((sides[0], answer), (sides[1], gold)):
        if side and side.unit == "degree" and "\\pi" in other and "\\circ" not in other:
            radians = f"\\frac{{{side.value.numerator}\\pi}}{{{180 * side.value.denominator}}}"
            return _equal(radians, other)
    return None


def _quantity(gold: str, answer: str) -> Decision | None:
    wanted, given = values.quantity(gold), values.quantity(answer)
    if wanted is None or given is None:
        return None
    return values.equal_quantities(wanted, given), "number"


def _relation(gold: str, answer: str) -> Decision | None:
    """Congruences only match congruences; inequalities in one variable are intervals."""
    if ("\\equiv" in answer or "\\pmod" in answer) != ("\\equiv" in gold or "\\pmod" in gold):
        return False, "congruence"
    a, b = _interval(gold), _interval(answer)
    if (a is None) == (b is None):
        return None
    return _equal(a or gold, b or answer)


def _interval(text: str) -> str | None:
    if not _INEQUALITY.search(text):
        return None
    pieces = split(_and_to_comma(text), ",")
    if len(pieces) > 1 and re.search(r"\bor\b", text):
        unions = [_interval(piece) for piece in pieces]
        return None if None in unions else "\\cup".join(unions)  # type: ignore[arg-type]
    parts = [part.strip() for part in _INEQUALITY.split(text)]
    signs = _INEQUALITY.findall(text)
    closed = ["\\" in sign for sign in signs]
    rising = [sign in ("<", "\\le") for sign in signs]
    if len(signs) == 1 and re.fullmatch(r"[a-zA-Z]", parts[0]):
        edge = parts[1]
        if rising[0]:
            return f"(-\\infty,{edge}{']' if closed[0] else ')'}"
        return f"{'[' if closed[0] else '('}{edge},\\infty)"
    if len(signs) == 2 and rising[0] == rising[1] and re.fullmatch(r"[a-zA-Z]", parts[1]):
        low, high = (0, 1) if rising[0] else (1, 0)
        edges = (parts[0], parts[2]) if rising[0] else (parts[2], parts[0])
        return f"{'[' if closed[low] else '('}{edges[0]},{edges[1]}{']' if closed[high] else ')'}"
    return None


def _assignment(gold: str, answer: str) -> Decision | None:
    """`x=5` for 5, `x \\in S` for S, `25+8=33` for 33; an equation that holds no such label is not a value."""
    a, b = _strip_label(gold), _strip_label(answer)
    if "=" in gold and "=" in answer:
        heads = [compact(text.split("=")[0]) for text in (gold, answer)]
        same = heads[0] == heads[1] or all(map(_FUNCTION.fullmatch, heads))
        return _equal(a, b) if (a, b) != (gold, answer) and same else None
    if (a, b) != (gold, answer):
        return _equal(a, b)
    if "=" in answer and values.quantity(gold) is not None:
        return False, "equation for a value"
    return None


def _strip_label(text: str) -> str:
    match = re.fullmatch(r"[a-zA-Z]\s*\\in\s*(.+)", text)
    if match:
        return match[1].strip()
    parts = split(text, "=")
    if len(parts) < 2 or not parts[-1]:
        return text
    if not parts[0]:
        return parts[-1]
    if any(len(split(_and_to_comma(part), ",;")) > 1 for part in parts[:-1]):
        return text  # several assignments, `x=1, x=2`: each item has its own
    head = compact(parts[0])
    if len(parts) == 2 and _LABEL.fullmatch(compact(parts[1])) and not _LABEL.fullmatch(head):
        return parts[0]
    arithmetic = re.fullmatch(r"[\d+\-*/^(){}.\s]|(?:[\d+\-*/^(){}.\s]|\\(?:cdot|times|frac|sqrt|div))+", head)
    return parts[-1] if _LABEL.fullmatch(head) or arithmetic else text


def _collection(gold: str, answer: str) -> Decision | None:
    wanted, given = _items(gold), _items(answer)
    if wanted is None and given is None:
        return None
    (open_a, items_a, close_a), (open_b, items_b, close_b) = wanted or ("", [gold], ""), given or ("", [answer], "")
    ordered = bool(open_a) and open_a != "\\{"
    if ordered and any(mark in gold + answer for mark in ("\\cup", "\\cap", "\\setminus")):
        return None
    if (wanted is None or given is None) and values.number(gold if given is None else answer) is not None:
        return None  # 1,000,000 is a number as well
    if ordered and not open_b and _coordinates(items_b):
        open_b, close_b = open_a, close_a
    if open_b == "(" and not open_a and _coordinates(items_a):
        ordered, open_a, close_a = True, open_b, close_b
    unordered_b = open_b in ("", "\\{")
    if ordered and (open_a, close_a) != (open_b, close_b):
        return (False, "brackets") if wanted and given else None
    if not ordered and not unordered_b:
        return (False, "brackets") if wanted and given else None
    if wanted is None and re.search(r"\bor\b", answer) and all(_equal(gold, item)[0] for item in items_b):
        return True, "said twice"  # `1/2 or 0.5`
    if len(items_a) != len(items_b):
        return False, "count"
    if ordered:
        return all(_equal(a, b)[0] for a, b in zip(items_a, items_b, strict=True)), "ordered"
    return _matched(items_a, items_b), "set"


def _coordinates(items: list[str]) -> bool:
    """`x=3, y=4`: different letters in alphabetical order name the places of a tuple."""
    labels = [compact(split(item, "=")[0]) for item in items if "=" in item]
    return len(labels) == len(items) == len(set(labels)) and labels == sorted(labels) and all(map(str.isalpha, labels))


def _matched(wanted: list[str], given: list[str]) -> bool:
    left = list(given)
    for item in wanted:
        hit = next((other for other in left if _equal(item, other)[0]), None)
        if hit is None:
            return False
        left.remove(hit)
    return True


def _items(text: str) -> tuple[str, list[str], str] | None:
    """(opening, items, closing) of a list, tuple, interval or set; None for a single value."""
    if compact(text) in ("\\emptyset", "\\{\\}"):
        return "\\{", [], "\\}"
    inside = bracketed(text)
    if inside and (parts := _expand(split(_and_to_comma(inside[1]), ",;"))) and (len(parts) > 1 or inside[0] == "\\{"):
        return inside[0], parts, inside[2]
    parts = _expand([part for part in split(_and_to_comma(text), ",;") if part])
    return ("", parts, "") if len(parts) > 1 else None


def _and_to_comma(text: str) -> str:
    text = re.sub(r",?\s*\\text\{\s*,?\s*(?:and|or)\s*\}", ",", text)
    return re.sub(r",?\s+(?:and|or)\s+", ",", text)


def _expand(parts: list[str]) -> list[str]:
    r"""Each item with one `\pm` as the two answers that it stands for."""
    expanded = []
    for part in parts:
        if part.count("\\pm") == 1:
            expanded += [re.sub(r"\\pm\s*", sign, part) for sign in ("+", "-")]
        else:
            expanded.append(part)
    return [re.sub(r"^\+\s*", "", part) for part in expanded]


def _matrix(gold: str, answer: str) -> Decision | None:
    wanted, given = _cells(gold), _cells(answer)
    if wanted is None or given is None:
        return None
    if [len(row) for row in wanted] != [len(row) for row in given]:
        return False, "shape"
    pairs = zip((cell for row in wanted for cell in row), (cell for row in given for cell in row), strict=True)
    return all(_equal(a, b)[0] for a, b in pairs), "matrix"


def _vector(gold: str, answer: str) -> Decision | None:
    """A matrix of one row or column and a tuple are two ways to write one vector."""
    cells = [_cells(text) for text in (gold, answer)]
    if (cells[0] is None) == (cells[1] is None):
        return None
    matrix, tuple_ = (cells[0], _items(answer)) if cells[0] else (cells[1], _items(gold))
    assert matrix is not None
    if tuple_ is None or tuple_[0] != "(" or 1 not in (len(matrix), max(map(len, matrix))):
        return None
    entries = [cell for row in matrix for cell in row]
    pairs = zip(entries, tuple_[1], strict=False)
    return len(entries) == len(tuple_[1]) and all(_equal(a, b)[0] for a, b in pairs), "vector"


def _cells(text: str) -> list[list[str]] | None:
    match = re.fullmatch(
        r"[(\[]?\s*\\begin\s*\{((?:[pbB]|small)?matrix|array)\}\s*(?:\{[^{}]*\})?(.*?)\\end\s*\{\1\}\s*[)\]]?",
        text,
        flags=re.DOTALL,
    )
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\\s*(?:\[\s*-?[\d.]+\s*[a-z]+\s*\])?|\\cr", match[2]) if row.strip()]
    return [[normalise(cell) for cell in row.split("&")] for row in rows]
