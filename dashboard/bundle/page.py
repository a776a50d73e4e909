"""The HTML of a bundle: the same contents that the pages show, one section each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dashboard.bundle import vega
from dashboard.contents.base import Block, Charts, Content, Heading, Note, Table

STYLE = Path(__file__).parents[1] / "style.css"
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:;
 script-src 'unsafe-inline' 'unsafe-eval' data:">
<style>{style}
body {{ font-family: "Source Sans Pro", "DejaVu Sans", system-ui, sans-serif; color: #1F2933; max-width: 1280px;
  margin: 0 auto; padding: 2rem clamp(1rem, 4vw, 3rem); }}
h1 {{ font-size: 1.9rem; }} h2 {{ font-size: 1.45rem; margin-top: 3rem; }} h3 {{ font-size: 1.15rem; }}
nav a {{ margin-right: 1rem; color: #0072B2; }} .facts, .caption {{ color: #5F6B7A; }}
.charts {{ display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }}
.chart {{ width: 100%; min-height: 60px; }}
.note {{ background: #EAF3FA; border-radius: 6px; padding: .7rem 1rem; margin: 1rem 0; }}
</style>
<script type="importmap">{imports}</script></head><body>
<h1>{title}</h1>
{facts}
<nav aria-label="Sections">{links}</nav>
{sections}
<script type="application/json" id="charts">{charts}</script>
<script type="module">
const charts = JSON.parse(document.getElementById("charts").textContent);
import("evictbench-charts/embed").then(async ({{ embed }}) => {{
  for (const [id, spec] of Object.entries(charts)) await embed(`#${{id}}`, spec, {{ actions: {{ export: true,
    source: false, compiled: false, editor: false }}, renderer: "svg" }});
  document.body.dataset.charts = "drawn";
}}).catch(error => {{ document.body.dataset.charts = "failed";
  for (const place of document.querySelectorAll(".chart")) place.textContent = `No chart: ${{error}}`; }});
</script></body></html>
"""


def render(title: str, facts: Sequence[str], contents: Sequence[Content]) -> str:
    """One self-contained page. Every text is escaped; tables come escaped from dashboard.tables."""
    charts: dict[str, Any] = {}
    sections = [_section(content, charts) for content in contents]
    links = "".join(f'<a href="#{_anchor(content)}">{escape(content.title)}</a>' for content in contents)
    return _PAGE.format(
        title=escape(title),
        style=STYLE.read_text(encoding="utf-8"),
        imports=vega.import_map(),
        facts="".join(f'<p class="facts">{escape(fact)}</p>' for fact in facts),
        links=links,
        sections="".join(sections),
        charts=_inside_script(charts),
    )


def _section(content: Content, charts: dict[str, Any]) -> str:
    blocks = "".join(part for block in content.blocks for part in _block(block, charts))
    heading = f'<h2 id="{_anchor(content)}">{escape(content.title)}</h2>'
    return f'<section>{heading}<p class="facts">{escape(content.question)}</p>{blocks}</section>'


def _block(block: Block, charts: dict[str, Any]) -> Iterator[str]:
    match block:
        case Heading():
            yield f"<h3>{escape(block.text)}</h3>"
        case Note():
            yield f'<p class="note">{escape(block.text)}</p>'
        case Charts():
            yield '<div class="charts">'
            for alt, chart in block.charts:
                name = f"chart-{len(charts)}"
                charts[name] = {**chart.to_dict(), "description": alt}
                yield f'<div class="chart" id="{name}" role="img" aria-label="{escape(alt)}"></div>'
            yield f'</div><p class="caption">{escape(block.caption)}</p>'
        case Table():
            yield _without_links(block.html)
            spans = " ".join(f"<span><b>{escape(glyph)}</b> {escape(text)}</span>" for glyph, text in block.legend)
            yield f'<div class="eb-legend">{spans} {escape(block.note)}</div>'


def _without_links(html: str) -> str:
    """A table whose links are text: they lead to pages of a running dashboard."""
    return re.sub(r'<a href="[^"]*">(.*?)</a>', r"\1", html)


def _inside_script(value: Any) -> str:
    """JSON that cannot end its script element, whatever texts it holds; what is no number becomes null."""
    known = json.loads(json.dumps(value), parse_constant=lambda _: None)
    return json.dumps(known, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _anchor(content: Content) -> str:
    return content.title.lower()
