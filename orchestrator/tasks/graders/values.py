"""Answers that are plain values: exact numbers, percentages, numbers with units, numbers in another base, clocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from orchestrator.tasks.graders.latex import compact

# A decimal this exact is taken for the value it rounds from; shorter ones (0.333 for 1/3) are wrong.
MIN_DIGITS = 6
_INT = r"\d+(?:,\d{3})*|\d{1,3}(?: \d{3})+"
_PLAIN = re.compile(rf"([-+]?)\s*((?:{_INT})?)(\.\d+)?")
_FRACTION = re.compile(r"([-+]?)\s*(?:(\d+)\s*)?\\frac\{\s*([-+]?\d+)\s*\}\{\s*(\d+)\s*\}")
_SLASH = re.compile(r"([-+]?)\s*(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)")
_REPEATING = re.compile(r"([-+]?)(\d{0,20})\.(\d{0,20})\\overline\s*\{(\d{1,20})\}")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10", "twelve": "12", "sixteen": "16"}  # fmt: skip
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(?:[eE]|\\(?:times|cdot)\s*10\s*\^\s*)\{?\s*([-+]?\d{1,3})\s*\}?")
_BASED = re.compile(r"(\w+)\s*_\s*\{?\s*(\d{1,2})\s*\}?")
_UNIT_POWER = r"(?:\^\s*\{?(\d)\}?)?"
_UNITS = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "millimeter": "mm", "millimetre": "mm", "inch": "in", "inche": "in", "foot": "ft", "feet": "ft", "yard": "yd",
    "mile": "mi", "second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h", "degree": "degree",
    "dollar": "dollar", "cent": "cent", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "pound": "lb",
    "milliliter": "ml", "millilitre": "ml", "ounce": "oz", "ton": "ton", "radian": "radian", "rad": "radian",
    "day": "day", "week": "week", "month": "month", "year": "year", "mph": "mph",
}  # fmt: skip
_KNOWN = set(_UNITS.values())
# how many of the first unit of its row each unit is
_SCALES = (
    {"m": "1", "mm": "1/1000", "cm": "1/100", "km": "1000", "in": "0.0254", "ft": "0.3048", "yd": "0.9144",
     "mi": "1609.344"},
    {"s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"},
    {"g": "1", "kg": "1000"},
    {"l": "1", "ml": "1/1000"},
    {"dollar": "1", "cent": "1/100"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with what stands around it. unit None = nothing stood there; "?" = words that are no known unit."""

    value: Fraction
    decimals: int | None
    digits: int
    percent: bool
    unit: str | None


def number(text: str) -> tuple[Fraction, int | None, int] | None:
    """(value, decimals or None, significant digits) of an integer, decimal, fraction, mixed or scientific number."""
    text = text.strip()
    if match := _REPEATING.fullmatch(text):
        sign, whole, head, period = match.groups()
        scale, nines = 10 ** len(head), 10 ** len(period) - 1
        value = int(whole or 0) + Fraction(int(head or 0), scale) + Fraction(int(period), scale * nines)
        return (-value if sign == "-" else value), None, 0
    if match := _SCIENTIFIC.fullmatch(text):
        return Fraction(match[1]) * Fraction(10) ** int(match[2]), None, 0
    if (match := _FRACTION.fullmatch(text)) or (match := _SLASH.fullmatch(text)):
        sign, whole, top, bottom = match.groups()
        if int(bottom) == 0 or len(top) + len(bottom) > 1000:
            return None
        value = Fraction(int(top), int(bottom)) + int(whole or 0)
        return (-value if sign == "-" else value), None, 0
    match = _PLAIN.fullmatch(text)
    if match is None or not (match[2] or match[3]) or len(text) > 1000:
        return None
    whole = re.sub(r"[, ]", "", match[2])
    value = Fraction((whole or "0") + (match[3] or ""))
    decimals = len(match[3]) - 1 if match[3] else None
    return (-value if match[1] == "-" else value), decimals, len((whole + (match[3] or "")[1:]).lstrip("0"))


def quantity(text: str) -> Quantity | None:
    """A number with an optional currency, percent sign, degree sign or unit words; None for anything else."""
    text = re.sub(r"^\\text\{\s*(\d[\d.,/]*)\s+([^{}]+)\}$", r"\1 \\text{\2}", text.strip())
    text = re.sub(r"^\\text\{\s*([-+]?\d[\d.,/]*)\s*\}$", r"\1", text)
    money = bool(re.match(r"\\\$|(?:\\text\{)?\s*(?:USD|Rs)\b", text))
    bare = re.sub(r"^\\\$\s*", "", text)
    match = re.fullmatch(r"(.*?)\s*(\\?%|\\text\{\s*percent\s*\}|percent)\s*", bare)
    percent = match is not None
    bare = match[1] if match else bare
    unit = "dollar" if money else None
    if (found := number(bare)) is None:
        head, unit_text = _split_unit(bare)
        found = number(head) if unit_text else None
        if found is None:
            return None
        unit = _unit(unit_text)
    value, decimals, digits = found
    return Quantity(value, decimals, digits, percent, unit)


def equal_quantities(gold: Quantity, answer: Quantity) -> bool:
    """Values equal in one unit; a missing unit or percent sign is forgiven, one of another kind is not."""
    if gold.unit and answer.unit and gold.unit != answer.unit and "?" not in (gold.unit, answer.unit):
        factor = _factor(answer.unit, gold.unit)
        return factor is not None and gold.value == answer.value * factor
    if (gold.percent and answer.unit) or (answer.percent and gold.unit):
        return False
    values = {gold.value, gold.value / 100} if gold.percent else {gold.value}
    answers = {answer.value, answer.value / 100} if answer.percent and not gold.percent else {answer.value}
    if gold.percent and answer.percent:
        return same(gold.value, answer)
    if values & answers:
        return True
    return gold.decimals is None and any(same(value, answer) for value in values)


def _factor(unit: str, wanted: str) -> Fraction | None:
    """How many `wanted` one `unit` is; None for units of different kinds."""
    (name, _, power), (target, _, target_power) = unit.partition("^"), wanted.partition("^")
    scale = next((row for row in _SCALES if name in row and target in row), None)
    if scale is None or power != target_power:
        return None
    return (Fraction(scale[name]) / Fraction(scale[target])) ** int(power or 1)


def same(exact: Fraction, answer: Quantity) -> bool:
    """Equal, or the answer is a decimal of at least MIN_DIGITS digits that the exact value rounds or truncates to."""
    if exact == answer.value:
        return True
    if answer.decimals is None or answer.digits < MIN_DIGITS:
        return False
    return abs(exact - answer.value) < Fraction(1, 10**answer.decimals)


def in_base(text: str) -> tuple[str, int] | None:
    """(digits, base) of `2516_8`; None for anything else."""
    text = re.sub(
        r"_\s*\{?\s*\\text\{\s*(\w+)\s*\}\s*\}?$", lambda word: f"_{_BASES.get(word[1], word[1])}", text.strip()
    )
    match = _BASED.fullmatch(re.sub(r"^\((\w+)\)(?=\s*_)", r"\1", text))
    if match is None or not 2 <= int(match[2]) <= 36:
        return None
    try:
        int(match[1], int(match[2]))
    except ValueError:
        return None
    return match[1].lstrip("0").upper() or "0", int(match[2])


def equal_based(gold: str, answer: str) -> bool | None:
    """Where a base is written: the same base and digits; gold's base may be left out, a value stands for itself."""
    wanted, given = in_base(gold), in_base(answer)
    if wanted is None and given is None:
        return None
    if wanted is not None:
        return given == wanted if given else compact(answer).lstrip("0").upper() == wanted[0]
    assert given is not None
    plain = number(gold)
    return plain is not None and plain[0] == int(given[0], given[1])


def equal_ratios(gold: str, answer: str) -> bool | None:
    """Clock times as text, ratios up to a common factor or as a quotient; None where gold is neither."""
    if not re.fullmatch(r"\s*\d+(?:\s*:\s*\d+)+\s*", gold):
        return None
    answer = re.sub(r"\s*(?:\\text\{)?\s*[ap]\.?\s*m\.?\s*\}?$", "", answer, flags=re.IGNORECASE)
    clock = re.fullmatch(r"\d{1,2}:\d\d", compact(gold))
    if not re.fullmatch(r"\s*\d+(?:\s*:\s*\d+)+\s*", answer):
        first, _, second = compact(gold).partition(":")
        quotient = number(answer)
        plain = not clock and second.isdigit() and int(second) > 0 and quotient is not None
        return bool(plain and quotient and quotient[0] == Fraction(int(first), int(second)))
    if clock:
        return compact(gold) == compact(answer)
    a, b = ([Fraction(part) for part in compact(text).split(":")] for text in (gold, answer))
    return len(a) == len(b) and all(x * b[0] == y * a[0] for x, y in zip(a, b, strict=True))


def _split_unit(text: str) -> tuple[str, str]:
    """A number and what measures it: words in \text, a degree sign, or two letters and more behind a space."""
    words = r"\\text\{[^{}]*\}|\^\\circ|(?<=\s)[A-Za-z]{2}[A-Za-z .]*"
    match = re.fullmatch(rf"(.*?[\d}}]\s*?)\s*((?:{words})\s*{_UNIT_POWER})", text)
    return (match[1], match[2]) if match else (text, "")


def _unit(text: str) -> str:
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip()
    text = re.sub(r"\^\s*\\circ", "degree", text)
    match = re.fullmatch(rf"(.*?)\s*{_UNIT_POWER}", text)
    words = (match[1] if match else text).lower().replace(".", " ").split()
    power = match[2] if match and match[2] else None
    if words and words[0] in ("square", "sq", "cubic", "cu"):
        power = "2" if words[0].startswith("sq") else "3"
        words = words[1:]
    if len(words) != 1:
        return "?"
    word = words[0]
    name = _UNITS.get(word) or _UNITS.get(word.removesuffix("s")) or (word if word in _KNOWN else None)
    if name is None:
        return "?"
    return f"{name}^{power}" if power else name
