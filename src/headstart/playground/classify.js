// The label of a text, its probability, and each token's part in it.

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

function pieces(explanation, label) {
  const most = Math.max(1e-9, ...explanation.parts.map(Math.abs));
  const shown = explanation.pieces.flatMap((piece, place) => {
    const part = explanation.parts[place], word = piece.replaceAll("▁", " ").replaceAll("↵", "↵\n");
    const bare = word.trimStart() || word, space = word.slice(0, word.length - bare.length);
    const span = el("span", { class: "piece", title: signed(part) }, bare);
    span.style.backgroundColor = "rgba(var(" + (part < 0 ? "--baseline" : "--for") + "), " + (0.75 * Math.abs(part) / most).toFixed(3) + ")";
    return [space, span];
  });
  const key = el("p", { class: "soft key" },
    el("span", { class: "for" }, el("i"), "speaks for “", el("bdi", {}, label), "”"),
    el("span", { class: "against" }, el("i"), "speaks against it"));
  const sum = explanation.parts.reduce((a, b) => a + b, 0);
  const about = el("p", { class: "soft" },
    "A token’s part is what the label’s log-odds lose when it alone is left out. The whole text moves them by " +
    signed(explanation.whole) + "; its tokens one by one add up to " + signed(sum) + ", and the rest is their company.");
  const rows = explanation.pieces.map((piece, place) => [piece, signed(explanation.parts[place])]);
  return [
    el("h2", {}, "Each token’s part"), el("p", { class: "pieces" }, ...shown), key, about,
    el("details", { class: "parts" }, el("summary", {}, "The same as a table"), table("Each token’s part, in nats", ["token", "part"], rows)),
  ];
}

export function start(models) {
  fillModels(find("classify-model"), models);
  onSend(find("classify-form"), async (signal) => {
    const asked = {
      model: find("classify-model").value,
      texts: [find("classify-text").value],
      explain: find("classify-explain").checked,
    };
    const found = (await post("/v1/classify", asked, signal)).labels[0], place = find("classify-result");
    fill(place,
      el("p", { class: "verdict" }, el("bdi", {}, found.label), el("small", {}, percent(found.probability))),
      bars(found.probabilities),
      found.cut ? el("p", { class: "soft" }, "The text was cut: " + found.tokens + " tokens were read.") : null,
      ...(found.explanation && found.explanation.pieces.length ? pieces(found.explanation, found.label) : []));
    place.hidden = false;
  });
}
