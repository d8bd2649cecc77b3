// The attention explorer: a grid of layers and attention heads, one of them enlarged.

import { post } from "/api.js";
import { el, fillModels, find, onSend } from "/elements.js";

/* global exploreAttention -- of /explorer.js */
const cleanUps = new WeakMap(); // of the explorer that an element shows

function thumbnails(found, layers, heads) {
  const words = (map) => "layer " + map.layer + ", attention head " + map.attention_head + ": mean distance " + map.distance.toFixed(1) +
    " tokens, entropy " + map.entropy.toFixed(1) + " bits";
  const cell = (map) => el("td", {}, el("button", {
    type: "button", class: "thumb", "data-layer": map.layer - 1, "data-head": map.attention_head - 1,
    "aria-pressed": "false", "aria-label": words(map), title: words(map),
  }, el("canvas")));
  const rows = Array.from({ length: layers }, (_, layer) => el("tr", {},
    el("th", { scope: "row" }, "layer " + (layer + 1)), ...found.maps.slice(layer * heads, (layer + 1) * heads).map(cell)));
  return el("table", { class: "heads" + (heads > 8 ? " many" : ""), id: "heads" },
    el("thead", {},
      el("tr", {}, el("td"), el("th", { scope: "colgroup", colspan: heads }, "attention head")),
      el("tr", {}, el("td"), ...Array.from({ length: heads }, (_, head) => el("th", { scope: "col" }, String(head + 1))))),
    el("tbody", {}, ...rows));
}

function enlarged(isSelf, hint) {
  const direction = (value, words) => el("label", {}, el("input", { type: "radio", name: "direction", value, checked: value === "from" }), " " + words);
  const directions = el("fieldset", {}, el("legend", {}, "Direction"), direction("from", "as a query: keys it attends to"), direction("to", "as a key: queries that attend to it"));
  return el("section", { "aria-labelledby": "which" },
    el("h2", { id: "which", "aria-live": "polite" }),
    el("div", { class: "bar" }, isSelf ? directions : null,
      el("span", { class: "scale", "aria-hidden": "true" }, "0 ", el("i"), " ", el("span", { id: "peak" }))),
    el("p", { class: "soft" }, hint),
    el("div", { class: "strip", id: "queries", role: "group", "aria-label": "queries" }),
    ...(isSelf ? [] : [el("p", { class: "soft" }, "Keys:"), el("div", { class: "strip", id: "keys", role: "group", "aria-label": "keys" })]),
    el("p", { class: "summary", id: "summary", "aria-live": "polite" }), el("ol", { class: "top-weights", id: "top-weights" }),
    el("p", { class: "soft", id: "cell-weight" }),
    el("div", { class: "map", tabindex: "0", role: "group", "aria-label": "enlarged map" }, el("canvas", { id: "map", role: "img" })));
}

// Ids and styles of the explorer live in a shadow tree, so that one page can hold two of them.
export async function show(element, found, hint) {
  if (cleanUps.has(element)) cleanUps.get(element)();
  const layers = new Set(found.maps.map((map) => map.layer)).size, heads = found.maps.length / layers;
  const isSelf = found.queries.length === found.keys.length && found.queries.every((word, i) => word === found.keys[i]);
  const host = el("div"), root = host.attachShadow({ mode: "open" });
  const sheets = ["/page.css", "/attention.css", "/playground.css"].map((href) => el("link", { rel: "stylesheet", href }));
  const loaded = sheets.map((sheet) => new Promise((resolve) => { sheet.onload = sheet.onerror = resolve; }));
  root.append(...sheets,
    el("section", {}, el("h2", {}, "Choose a map"),
      el("p", { class: "soft" }, "A row of a map is a query token, a column a key token. Click a map, or move with the arrow keys."),
      el("div", { class: "wide" }, thumbnails(found, layers, heads))),
    enlarged(isSelf, hint));
  element.replaceChildren(host);
  await Promise.all(loaded); // a map is as large as its style says
  const weights = new Uint16Array(found.maps.length * found.queries.length * found.keys.length);
  let at = 0;
  for (const map of found.maps) for (const row of map.weights) for (const weight of row) weights[at++] = Math.round(65535 * weight);
  const data = {
    layers, heads, isSelf, queries: found.queries, keys: found.keys, start: [0, 0], weights, seen: Uint8Array.from(found.seen.flat()),
  };
  cleanUps.set(element, exploreAttention(root, data, false));
}

export function start(models) {
  fillModels(find("attention-model"), models);
  onSend(find("attention-form"), async (signal) => {
    const query = { model: find("attention-model").value, text: find("attention-text").value };
    const found = await post("/v1/attention", query, signal);
    find("attention-about").textContent = found.queries.length + " tokens, " + found.maps.length + " maps" +
      (found.cut ? "; the text was truncated to the maximum length" : "") + ". ▁ in a token is a space.";
    await show(find("attention-maps"), found, "Point at a token, or move with ← and →; a click selects it.");
  });
}
