// The label of a text, its probability, and the attribution of each token.

import { post } from "/api.js";
import { el, fill, fillModels, find, onSend, percent, signed, table } from "/elements.js";

const SHOWN = 12; // labels

function bars(probabilities) {
  const sorted = Object.entries(probabilities).sort((a, b) => b[1] - a[1]).slice(0, SHOWN);
  return el("ul", { class: "bars", "aria-label": "Probability of each label" }, ...sorted.map(([label, share]) => {
    const bar = el("span", { class: "bar" });
    bar.style.width = 100 * share + "%";
    return el("li", {}, el("bdi", { title: label }, label), el("span", { class: "lane" }, bar), el("span", {}, percent(share)));
  }));
}

function attribution(explanation, label) {
  const most = Math.max(1e-9, ...explanation.parts.map(Math.abs));
  const shown = explanation.pieces.flatMap((piece, i) => {
    const part = explanation.parts[i], word = piece.replaceAll("▁", " ").replaceAll("↵", "↵\n");
    const bare = word.trimStart() || word, space = word.slice(0, word.length - bare.length);
    const span = el("span", { class: "piece", title: signed(part) }, bare);
    span.style.backgroundColor = "rgba(var(" + (part < 0 ? "--baseline" : "--for") + "), " + (0.75 * Math.abs(part) / most).toFixed(3) + ")";
    return [space, span];
  });
  const key = el("p", { class: "soft key" },
    el("span", { class: "for" }, el("i"), "evidence for “", el("bdi", {}, label), "”"),
    el("span", { class: "against" }, el("i"), "evidence against it"));
  const sum = explanation.parts.reduce((a, b) => a + b, 0);
  const about = el("p", { class: "soft" },
    "The attribution of a token is how much the log-odds of the label fall without it. The whole text changes them by " +
    signed(explanation.whole) + ", the attributions add up to " + signed(sum) + "; the difference is the interaction of tokens.");
  const rows = explanation.pieces.map((piece, i) => [piece, signed(explanation.parts[i])]);
  return [
    el("h2", {}, "Attribution of each token"), el("p", { class: "pieces" }, ...shown), key, about,
    el("details", { class: "parts" }, el("summary", {}, "The same as a table"), table("Attribution of each token, in nats", ["token", "attribution"], rows)),
  ];
}

export function start(models) {
  fillModels(find("classify-model"), models);
  onSend(find("classify-form"), async (signal) => {
    const query = {
      model: find("classify-model").value,
      texts: [find("classify-text").value],
      explain: find("classify-explain").checked,
    };
    const found = (await post("/v1/classify", query, signal)).labels[0], element = find("classify-result");
    fill(element,
      el("p", { class: "verdict" }, el("bdi", {}, found.label), el("small", {}, percent(found.probability))),
      bars(found.probabilities),
      found.cut ? el("p", { class: "soft" }, "The text was truncated to " + found.tokens + " tokens.") : null,
      ...(found.explanation && found.explanation.pieces.length ? attribution(found.explanation, found.label) : []));
    element.hidden = false;
  });
}
