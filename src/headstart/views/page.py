"""The plain parts of a page that needs nothing from outside: its frame, its style, tables and folds."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark;
  --ink: #1f2430; --soft: #596275; --faint: #8a93a3; --line: #dfe3ea; --paper: #ffffff; --ground: #f4f6f9;
  --good: #00724f; --bad: #b03a00; --accent: #0072b2;
  --arm-0: #0072b2; --arm-1: #d55e00; --arm-2: #009e73; --arm-3: #6b7280;
  --arm-4: #b5538c; --arm-5: #2f8fc4; --arm-6: #9a7500; --arm-7: #7a5195; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e7eaf0; --soft: #a6afbf; --faint: #7d8798; --line: #333a47; --paper: #1b1f27; --ground: #12151b;
  --good: #3fcf9f; --bad: #ff9255; --accent: #5cb8ee;
  --arm-0: #4bb0ee; --arm-1: #ff8a3d; --arm-2: #2ec99a; --arm-3: #a3acba;
  --arm-4: #e39bc5; --arm-5: #8ccdf5; --arm-6: #e0b93a; --arm-7: #b894d6; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
header p { color: var(--soft); margin: 0; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.25; margin: .3rem 0 .7rem; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
h3 { font-size: 1rem; margin: 1.3rem 0 .4rem; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.2rem 1.4rem; margin: 1.2rem 0; }
p, ul, dl { margin: .5rem 0; }
.soft, figcaption { color: var(--soft); font-size: .92rem; }
.wide:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; max-width: calc(100vw - 4rem); }
th, td { text-align: left; padding: .42rem .7rem .42rem 0; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); vertical-align: bottom; }
tbody th { font-weight: 600; }
tr.group th { color: var(--soft); padding-top: 1rem; }
.number { text-align: right; } td.number, .name { white-space: nowrap; } .number:last-child { padding-right: 0; }
small { font-weight: 400; color: var(--soft); font-size: .85em; white-space: nowrap; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .5em; }
.better { color: var(--good); font-weight: 600; } .worse { color: var(--bad); font-weight: 600; }
figure { margin: 0; } .legend { display: none; margin: .2rem 0; } .legend .name { margin-right: 1rem; }
figure svg { display: block; width: 100%; height: auto; min-width: 31rem; max-width: 52rem; margin: 0 auto; }
details, .row { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; }
td, tbody th { overflow-wrap: break-word; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; font-size: .88em; }
pre { overflow-x: auto; background: var(--ground); padding: .8rem; border-radius: 8px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 36rem) { main { padding: 1rem .7rem 3rem; } section { padding: 1rem .9rem; }
  .legend { display: block; font-size: .9rem; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { :root { --ground: #fff; } body { font-size: 10.5pt; } main { max-width: none; padding: 0; }
  section { border: 0; padding: 0; } figure, tr { break-inside: avoid; } figure svg { min-width: 0; } }
"""


def page(title: str, body: str) -> str:
    """A whole page; `title` is text, `body` is HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    """A titled part of the page, or nothing when there is nothing to say."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>" if body else ""


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", words: Sequence[int] = ()
) -> str:
    """A table of HTML cells; columns but the first and those in `words` hold numbers, a row of one cell is a group."""
    columns = {index for index in range(1, len(head)) if index not in words}
    top = "".join(
        f'<th scope="col"{_number(i in columns)}>{escape(name)}</th>' for i, name in enumerate(head)
    )
    lines = []
    for row in rows:
        if len(row) == 1 and len(head) > 1:
            lines.append(f'<tr class="group"><th scope="colgroup" colspan="{len(head)}">{row[0]}</th></tr>')
            continue
        cells = "".join(f"<td{_number(i in columns)}>{cell}</td>" for i, cell in enumerate(row) if i)
        lines.append(f'<tr><th scope="row">{row[0]}</th>{cells}</tr>')
    titled = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return f'<div class="wide" tabindex="0"><table>{titled}<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def details(summary: str, body: str) -> str:
    """A fold; both arguments are HTML."""
    return f"<details><summary>{summary}</summary>\n{body}\n</details>"


def pairs(items: Mapping[str, Any]) -> str:
    """Names with their values, as a list of pairs."""
    return (
        "<dl>"
        + "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in items.items())
        + "</dl>"
    )


def bullets(lines: Sequence[str]) -> str:
    """Lines of text as a list, or nothing."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _number(is_number: bool) -> str:
    return ' class="number"' if is_number else ""
