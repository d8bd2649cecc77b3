// A translation, and the source tokens that each of its tokens attends to.

import { post } from "/api.js";
import { show } from "/attention.js";
import { el, fill, fillModels, find, onSend } from "/elements.js";

export function start(models) {
  fillModels(find("translate-model"), models);
  onSend(find("translate-form"), async (signal) => {
    const query = { model: find("translate-model").value, texts: [find("translate-text").value], attention: true };
    const found = (await post("/v1/translate", query, signal)).translations[0], element = find("translate-result");
    fill(element, el("p", { class: "verdict" }, found.text),
      found.cut ? el("p", { class: "soft" }, "The text was truncated to the maximum length.") : null);
    element.hidden = false;
    await show(find("translate-maps"), found.attention, "Point at a token of one sentence to see the tokens it attends to in the other");
  });
}
