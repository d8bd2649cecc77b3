// A text in the other language, and the source tokens that each of its tokens attends to.

import { post } from "/api.js";
import { show } from "/attention.js";
import { el, fill, fillModels, find, onSend } from "/elements.js";

export function start(models) {
  fillModels(find("translate-model"), models);
  onSend(find("translate-form"), async (signal) => {
    const asked = { model: find("translate-model").value, texts: [find("translate-text").value], attention: true };
    const found = (await post("/v1/translate", asked, signal)).translations[0], place = find("translate-result");
    fill(place, el("p", { class: "verdict" }, found.text),
      found.cut ? el("p", { class: "soft" }, "The text was cut to what the run reads.") : null);
    place.hidden = false;
    await show(find("translate-maps"), found.attention, "Point at a token of one sentence to see the tokens it attends to in the other");
  });
}
