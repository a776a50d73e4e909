"""LaTeX answers as text: one spelling per meaning, and where their top-level parts are. No algebra here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ", "∈": r"\in ", "⇒": r"\Rightarrow ", "→": r"\rightarrow ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]",
    "⟨": r"\langle ", "⟩": r"\rangle ", "≡": r"\equiv ", "ℝ": r"\mathbb{R}", "′": "'", "″": "''",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ",
}  # fmt: skip
# NFKC would turn a superscript into a digit, so only the full-width forms of ASCII are folded.
_FOLD = str.maketrans({**_UNICODE, **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}})

# runs of raised or lowered digits are one exponent or index; ½ is 1⁄2 to Unicode
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "₀₁₂₃₄₅₆₇₈₉₊₋"
_PLAIN = "0123456789+-"
_VULGAR = re.compile("[¼-¾⅐-⅞]")

_SPELLINGS = (
    (re.compile(r"\\(?:left|right)\s*\."), ""),
    (re.compile(r"\^\s*\{?\s*\\(?:text|mathrm|rm)\s*\{?\s*(?:st|nd|rd|th)\s*\}?\s*\}?"), ""),
    (re.compile(r"\^\s*(?:o|\{o\})(?![a-zA-Z])"), r"^\\circ "),
    (
        re.compile(r"(?<![\\a-zA-Z])(sin|cos|tan|cot|sec|csc|ln|log|exp)\s*(?=\(|[a-z](?![a-zA-Z])|\d)"),
        r"\\\1 ",
    ),
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?(?=[\s()\[\]{}|\\/<>.]|$)"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|allowbreak|protect)(?![a-zA-Z])"), " "),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![a-zA-Z])"), r"\\binom"),
    (re.compile(r"(?<!\\)\\!"), ""),  # a negative space, as in 10,\!080
    (re.compile(r"\\overline\s*\{\s*([A-Z]{2})\s*\}"), r"\1"),
    (re.compile(r"(?<!\\)\\(?:[,;:> ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|~"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:geq|geqslant)(?![a-zA-Z])"), r"\\ge"),
    (re.compile(r"\\(?:leq|leqslant)(?![a-zA-Z])"), r"\\le"),
    (re.compile(r"\\neq(?![a-zA-Z])"), r"\\ne"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:varnothing)(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\(?:to|longrightarrow)(?![a-zA-Z])"), r"\\rightarrow"),
    (re.compile(r"\\(?:implies|Longrightarrow)(?![a-zA-Z])"), r"\\Rightarrow"),
    (
        re.compile(r"\^\s*\{\s*(?:\\circ|\\degree)\s*\}|\^\s*(?:\\circ|\\degree)(?![a-zA-Z])|\\degree(?![a-zA-Z])"),
        r"^\\circ",
    ),
    (re.compile(r"\\(?:cdotp|ast)(?![a-zA-Z])"), r"\\cdot"),
    (re.compile(r"\\colon(?![a-zA-Z])|\\mathbin\s*\{?:\}?"), ":"),
    (re.compile(r"\\langle(?![a-zA-Z])\s*"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])\s*"), ")"),
    (re.compile(r"\{([^{}]+?)\\choose(?![a-zA-Z])([^{}]+)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\(?:bf|rm|it|tt|sf|sc|em)(?![a-zA-Z])\s*"), " "),
    (re.compile(r"\\(?:lbrace)(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\infin(?![a-zA-Z])"), r"\\infty"),
    (re.compile(r"\+\s*\\infty"), r"\\infty"),
)
_FONTS = (
    "mathrm",
    "mathbf",
    "mathit",
    "mathsf",
    "mathcal",
    "boldsymbol",
    "bm",
    "operatorname",
    "boxed",
    "fbox",
    "framebox",
    "underline",
    "textcolor",
)
_TEXTS = ("text", "mbox", "textbf", "textit", "textrm", "texttt", "hbox")
_OPEN, _CLOSE = "([{", ")]}"


def normalise(answer: str) -> str:
    """One spelling: no fonts, colours, spacing, dollars or full stops; `\\frac{a}{b}` and `\\sqrt{a}` with braces."""
    text = _scripts(answer).translate(_FOLD)
    text = re.sub(r"√\s*(\{[^{}]*\}|\([^()]*\)|\w+)", lambda found: rf"\sqrt{{{found[1].strip('{}()')}}}", text)
    text = re.sub(r"\\textcolor\s*\{[^{}]*\}|\\color\s*(?:\[[^\]]*\])?\{[^{}]*\}", " ", text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = _unwrap(text, _FONTS, r"{0}")
    text = _unwrap(text, _TEXTS, r"\text{{{0}}}")
    text = _brace_arguments(text)
    text = re.sub(r"\\frac\s*\{\s*\\text\{(\w+)\}\s*\}\s*\{\s*\\text\{(\w+)\}\s*\}", r"\\text{\1/\2}", text)
    return _peel(text)


def _scripts(text: str) -> str:
    """`x²` as `x^{2}`, `x₁` as `x_{1}`, `¾` as `\\frac{3}{4}`."""
    for marks, sign in ((_RAISED, "^"), (_LOWERED, "_")):
        plain = str.maketrans(marks, _PLAIN)
        text = re.sub(f"[{marks}]+", lambda run, s=sign, p=plain: f"{s}{{{run[0].translate(p)}}}", text)  # type: ignore[misc]
    return _VULGAR.sub(lambda one: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", one[0]).split("⁄")), text)


def _peel(text: str) -> str:
    """Strip what stands around an answer: dollars, math delimiters, full stops, one pair of redundant braces."""
    while True:
        before = text
        text = text.strip().strip("$").strip()
        text = re.sub(r"^\\[(\[](.*)\\[)\]]$", r"\1", text, flags=re.DOTALL)
        text = re.sub(r"(?:[.,;:]|(?<!\\)\\)+$", "", text)
        text = re.sub(r"^\*\*(.*)\*\*$", r"\1", text)
        if text.startswith("{") and closing(text, 0) == len(text) - 1:
            text = text[1:-1]
        text = re.sub(r"\s+", " ", text)
        if text == before:
            return text


def compact(text: str) -> str:
    """Without white space, where that changes nothing but looks."""
    return re.sub(r"\s+", "", text)


def closing(text: str, at: int) -> int | None:
    r"""Index of the bracket that closes the one at `at`; brackets of any kind nest, `\{` counts as one."""
    depth = 0
    for index in range(at, len(text)):
        if text[index] in _OPEN:
            depth += 1
        elif text[index] in _CLOSE:
            depth -= 1
            if depth == 0:
                return index
    return None


def top_level(text: str) -> Iterator[tuple[int, str]]:
    """(index, character) outside every bracket."""
    depth = 0
    for index, char in enumerate(text):
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif depth == 0:
            yield index, char


def split(text: str, separators: str) -> list[str]:
    """Top-level parts, stripped."""
    parts, start = [], 0
    for index, char in top_level(text):
        if char in separators:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def bracketed(text: str) -> tuple[str, str, str] | None:
    r"""(opening, inside, closing) when one pair of ( ), [ ], \{ \} or a mixed ( ] encloses the whole text."""
    match = re.fullmatch(r"(\\\{|[(\[])(.*?)(\\\}|[)\]])", text, flags=re.DOTALL)
    if match is None or closing(text, len(match[1]) - 1) != len(text) - 1:
        return None
    return match[1], match[2].strip(), match[3]


def depth(text: str) -> int:
    """Deepest nesting of brackets."""
    deepest = now = 0
    for char in text:
        now += (char in _OPEN) - (char in _CLOSE)
        deepest = max(deepest, now)
    return deepest


def _unwrap(text: str, commands: tuple[str, ...], shape: str) -> str:
    pattern = re.compile(r"\\(" + "|".join(commands) + r")\s*\{")
    at = 0
    while (match := pattern.search(text, at)) is not None:
        end = closing(text, match.end() - 1)
        if end is None:
            at = match.end()
            continue
        inside = text[match.end() : end]
        replaced = shape.format(inside)
        text = text[: match.start()] + replaced + text[end + 1 :]
        at = match.start() + (len(replaced) if shape != "{0}" else 0)
    return text


def _brace_arguments(text: str) -> str:
    r"""`\frac14`, `\frac{1}2`, `\sqrt2`, `\sqrt x` with braces around every argument."""
    text = re.sub(r"\\frac\s*(\d|[a-zA-Z])\s*(\d|[a-zA-Z])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d|[a-zA-Z])\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*(\d|[a-zA-Z])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt\s*(\[[^\[\]]*\])\s*(\d+|[a-zA-Z])", r"\\sqrt\1{\2}", text)
    return re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
