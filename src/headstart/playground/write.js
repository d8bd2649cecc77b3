// A text that goes on, token by token.

import { lines, Problem } from "/api.js";
import { el, fillModels, find, onSend, whole } from "/elements.js";

const number = (id) => (find(id).value === "" ? null : Number(find(id).value));

export function start(models) {
  fillModels(find("write-model"), models);
  const stop = onSend(find("write-form"), async (signal) => {
    const prompt = find("write-prompt").value, written = find("written"), about = find("written-about");
    const fresh = el("span", { class: "new" });
    written.replaceChildren(el("span", { class: "given" }, prompt), fresh);
    about.textContent = "writing …";
    find("write-result").hidden = false;
    find("write-stop").hidden = false;
    const asked = {
      model: find("write-model").value, prompt, tokens: number("write-tokens"), temperature: number("write-temperature"),
      top_k: number("write-top-k"), top_p: number("write-top-p"), seed: number("write-seed"),
    };
    try {
      for await (const line of lines("/v1/generate", asked, signal)) {
        if (line.error) throw new Problem(200, line);
        if (line.reason === undefined) { fresh.append(line.text); continue; }
        const why = line.reason === "end" ? "it came to its end" : "that is as long as was asked for";
        about.textContent = whole(line.tokens) + " tokens; " + why + (line.cut ? "; only the end of the beginning was read" : "") + ".";
      }
    } catch (error) {
      about.textContent = error.name === "AbortError" ? "stopped." : "it broke off.";
      throw error;
    } finally {
      find("write-stop").hidden = true;
    }
  });
  find("write-stop").addEventListener("click", () => { stop(); find("write-go").focus(); });
}
