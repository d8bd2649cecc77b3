"""Attention as one interactive page that needs nothing from outside; every token is shown as text."""

import base64
import json
from html import escape

import numpy as np

from headstart.views.attention import HEADINGS, AttentionMaps, entropy, mean_distance
from headstart.views.attention_script import SCRIPT
from headstart.views.page import page, section

STEPS = 65535  # weights travel as whole numbers of two bytes

STYLE = """
:root { --ramp-0: #ffffff; --ramp-1: #a9d3ec; --ramp-2: #0072b2; --ramp-3: #00304d; --unseen: #e9ecf1; }
@media (prefers-color-scheme: dark) { :root {
  --ramp-0: #1b1f27; --ramp-1: #0f4a70; --ramp-2: #3aa5e6; --ramp-3: #e3f4ff; --unseen: #2b313c; } }
.heads { border-collapse: separate; border-spacing: .5rem; width: auto; margin: 0 auto; }
.heads th, .heads td { border: 0; padding: 0; text-align: center; vertical-align: middle; }
.heads th { color: var(--soft); font-weight: 500; font-size: .85rem; white-space: nowrap; }
.heads tbody th { padding-right: .3rem; }
.thumb { display: block; padding: 3px; border: 2px solid var(--line); border-radius: 8px; background: var(--paper);
  cursor: pointer; line-height: 0; }
.thumb:hover { border-color: var(--faint); }
.thumb[aria-pressed="true"] { border-color: var(--accent); box-shadow: 0 0 0 2px var(--accent); }
.thumb:focus-visible, .token:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.thumb canvas { width: clamp(44px, 11vw, 104px); height: clamp(44px, 11vw, 104px); image-rendering: pixelated;
  border-radius: 4px; }
.many .thumb canvas { width: clamp(24px, 4.6vw, 56px); height: clamp(24px, 4.6vw, 56px); }
.many.heads { border-spacing: .25rem; }
.bar { display: flex; flex-wrap: wrap; gap: .6rem 1.4rem; align-items: center; margin: .4rem 0 .8rem; }
.bar label { cursor: pointer; } .bar fieldset { border: 0; margin: 0; padding: 0; display: flex; gap: 1rem; }
.bar legend { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.scale { display: flex; align-items: center; gap: .5rem; color: var(--soft); font-size: .88rem; margin-left: auto;
  font-variant-numeric: tabular-nums; }
.scale i { width: 7rem; height: .8rem; border-radius: 3px; border: 1px solid var(--line);
  background: linear-gradient(90deg, var(--ramp-0), var(--ramp-1) 33%, var(--ramp-2) 67%, var(--ramp-3)); }
.strip { display: flex; flex-wrap: wrap; gap: .28rem .2rem; margin: .3rem 0 .8rem; }
.token { font: inherit; font-size: .95rem; color: inherit; border: 1px solid var(--line); border-radius: 6px;
  padding: .1rem .36rem; background: var(--paper); cursor: pointer; unicode-bidi: isolate; max-width: 100%;
  overflow-wrap: anywhere; text-align: left; min-height: 1.9rem; }
.token.chosen { box-shadow: 0 0 0 2px var(--arm-1); border-color: var(--arm-1); }
.token.unseen { opacity: .4; }
.said { margin: .3rem 0 .6rem; min-height: 1.6em; }
.looks { list-style: none; margin: 0; padding: 0; display: grid; gap: .2rem; max-width: 34rem; }
.looks li { display: grid; grid-template-columns: 7.5rem 1fr 3.6rem; gap: .6rem; align-items: center;
  font-size: .92rem; font-variant-numeric: tabular-nums; }
.looks bdi { text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.looks i { display: block; height: .8rem; border-radius: 3px; background: var(--accent); min-width: 1px; }
.map { overflow-x: auto; margin-top: .4rem; } .map canvas { display: block; margin: 0 auto; }
#said-cell { min-height: 1.5em; text-align: center; }
kbd { border: 1px solid var(--line); border-radius: 4px; padding: 0 .3em; font-size: .85em; }
@media (max-width: 36rem) { .looks li { grid-template-columns: 5.5rem 1fr 3.2rem; } .scale { margin-left: 0; }
  .heads { border-spacing: .25rem; } .heads th { font-size: .75rem; } }
"""


def attention_page(maps: AttentionMaps, layer: int | None = None, attention_head: int | None = None) -> str:
    """All maps as one self-contained page: thumbnails to choose from, one enlarged, tokens to point at.

    It opens on the given layer and attention head, on the first of them unless told.
    """
    layers, heads = maps.chosen(layer, attention_head)
    heading = HEADINGS[maps.part]
    title = f"{heading}: {maps.title}" if maps.title else heading
    kind = "layer" if maps.layers == 1 else "layers"
    parts = "attention head" if maps.attention_heads == 1 else "attention heads"
    about = (
        f"{maps.layers} {kind} of {maps.attention_heads} {parts}, {len(maps.queries)} tokens"
        f"{'' if maps.is_self else f' that look at {len(maps.keys)}'}. ▁ in a token is a space."
    )
    header = (
        f"<header>\n<p>{escape(maps.title)}</p>\n<h1>{heading}</h1>\n<p>{escape(about)}</p>\n"
        "<noscript><p class='worse'>This page draws with JavaScript, which is off. "
        "Switch it on, or ask for a .png or .svg instead.</p></noscript>\n</header>"
    )
    body = "\n".join(
        (
            header,
            section("Choose a map", _thumbnails(maps)),
            _enlarged(maps),
            _script(maps, (layers[0], heads[0])),
        )
    )
    whole = page(title, body)
    return whole.replace("</head>", f"<style>{STYLE}</style>\n</head>", 1)


def _thumbnails(maps: AttentionMaps) -> str:
    wide, far = entropy(maps.weights).mean(axis=-1), mean_distance(maps.weights).mean(axis=-1)  # (L, A)
    top = "".join(f'<th scope="col">{head + 1}</th>' for head in range(maps.attention_heads))
    rows = []
    for layer in range(maps.layers):
        cells = []
        for head in range(maps.attention_heads):
            words = (
                f"layer {layer + 1}, attention head {head + 1}: looks {far[layer, head]:.1f} tokens away on average, "
                f"entropy {wide[layer, head]:.1f} bits"
            )
            cells.append(
                f'<td><button type="button" class="thumb" data-layer="{layer}" data-head="{head}" '
                f'aria-pressed="false" aria-label="{words}" title="{words}"><canvas></canvas></button></td>'
            )
        rows.append(f'<tr><th scope="row">layer {layer + 1}</th>{"".join(cells)}</tr>')
    many = " many" if maps.attention_heads > 8 else ""
    span = f'<tr><td></td><th scope="colgroup" colspan="{maps.attention_heads}">attention head</th></tr>'
    hint = (
        '<p class="soft">A row of a map is a token that looks, a column a token that it looks at. '
        "Click one, or move with <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd>.</p>"
    )
    return (
        f'{hint}<div class="wide"><table class="heads{many}" id="heads"><thead>{span}<tr><td></td>{top}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _enlarged(maps: AttentionMaps) -> str:
    ways = (
        "<fieldset><legend>Direction</legend>"
        '<label><input type="radio" name="way" value="from" checked> where it looks</label>'
        '<label><input type="radio" name="way" value="to"> who looks at it</label></fieldset>'
    )
    scale = '<span class="scale" aria-hidden="true">0 <i></i> <span id="peak"></span></span>'
    second = (
        ""
        if maps.is_self
        else '<p class="soft">Tokens that are looked at:</p><div class="strip" id="keys"></div>'
    )
    return (
        '<section aria-labelledby="which">\n<h2 id="which" aria-live="polite"></h2>\n'
        f'<div class="bar">{ways if maps.is_self else ""}{scale}</div>\n'
        '<p class="soft">Point at a token, or move with <kbd>←</kbd> <kbd>→</kbd>; a click keeps it.</p>\n'
        f'<div class="strip" id="queries" role="group" aria-label="tokens"></div>{second}\n'
        '<p class="said" id="said" aria-live="polite"></p>\n<ol class="looks" id="looks"></ol>\n'
        '<p class="soft" id="said-cell"></p>\n'
        '<div class="map" tabindex="0" role="group" aria-label="enlarged map"><canvas id="map" role="img"></canvas></div>\n'
        "</section>"
    )


def _script(maps: AttentionMaps, start: tuple[int, int]) -> str:
    whole = np.round(np.clip(maps.weights, 0, 1) * STEPS).astype("<u2")
    content = {
        "layers": maps.layers,
        "heads": maps.attention_heads,
        "queries": maps.queries,
        "keys": maps.keys,
        "start": start,
        "isSelf": maps.is_self,
        "weights": base64.b64encode(whole.tobytes()).decode("ascii"),
        "seen": base64.b64encode(maps.seen.astype(np.uint8).tobytes()).decode("ascii"),
    }
    return f'<script type="application/json" id="data">{script_json(content)}</script>\n<script>{SCRIPT}</script>'


def script_json(content: object) -> str:
    """JSON that cannot end the <script> it stands in, whatever text it holds."""
    text = json.dumps(content, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
