// Calls to the server that this page came from.

import { find } from "/elements.js";

const KEY = "headstart-token";
let asking = null;

export class Problem extends Error {
  constructor(status, content) {
    super(content.error || "the server answered " + status);
    this.status = status;
    this.hint = content.hint || "";
  }
}

// The token is asked for once, however many calls wait for it.
function askForToken() {
  if (asking) return asking;
  asking = new Promise((resolve) => {
    const dialog = find("token-dialog"), field = find("token");
    field.value = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (field.value) sessionStorage.setItem(KEY, field.value);
      field.value = "";
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
export const changeToken = () => askForToken();

async function call(path, options) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token ? { Authorization: "Bearer " + token } : {}) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, { error: "the server does not answer", hint: "is it still running?" });
    }
    if (answer.ok) return answer;
    if (answer.status === 401) { find("token-button").hidden = false; await askForToken(); continue; }
    throw new Problem(answer.status, await answer.json().catch(() => ({})));
  }
}

export async function get(path, signal) {
  return (await call(path, { signal })).json();
}

function sent(content, signal) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content), signal };
}

export async function post(path, content, signal) {
  return (await call(path, sent(content, signal))).json();
}

// The answer line by line, as it comes.
export async function* lines(path, content, signal) {
  const answer = await call(path, sent(content, signal));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
  if (rest) yield JSON.parse(rest);
}
