// The continuation of a prompt, token by token.

import { lines, Problem } from "/api.js";
import { el, fillModels, find, onSend, whole } from "/elements.js";

const number = (id) => (find(id).value === "" ? null : Number(find(id).value));

export function start(models) {
  fillModels(find("generate-model"), models);
  const stop = onSend(find("generate-form"), async (signal) => {
    const prompt = find("generate-prompt").value, generated = find("generated"), about = find("generated-about");
    const fresh = el("span", { class: "new" });
    generated.replaceChildren(el("span", { class: "given" }, prompt), fresh);
    about.textContent = "generating …";
    find("generate-result").hidden = false;
    find("generate-stop").hidden = false;
    const query = {
      model: find("generate-model").value, prompt, tokens: number("generate-tokens"), temperature: number("generate-temperature"),
      top_k: number("generate-top-k"), top_p: number("generate-top-p"), seed: number("generate-seed"),
    };
    try {
      for await (const line of lines("/v1/generate", query, signal)) {
        if (line.error) throw new Problem(200, line);
        if (line.reason === undefined) { fresh.append(line.text); continue; }
        const why = line.reason === "end" ? "the text has ended" : "the maximum number of tokens is reached";
        about.textContent = whole(line.tokens) + " tokens; " + why + (line.cut ? "; the beginning of the prompt was truncated" : "") + ".";
      }
    } catch (error) {
      about.textContent = error.name === "AbortError" ? "stopped." : "the connection broke.";
      throw error;
    } finally {
      find("generate-stop").hidden = true;
    }
  });
  find("generate-stop").addEventListener("click", () => { stop(); find("generate-go").focus(); });
}
