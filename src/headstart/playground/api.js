// Calls to the server that this page came from.

import { find } from "/elements.js";

const KEY = "headstart-token";
let pendingToken = null;

export class Problem extends Error {
  constructor(status, content) {
    super(content.error || "the server answered " + status);
    this.status = status;
    this.hint = content.hint || "";
  }
}

// One dialog requests the token, however many calls wait for it.
function requestToken() {
  if (pendingToken) return pendingToken;
  pendingToken = new Promise((resolve) => {
    const dialog = find("token-dialog"), field = find("token");
    field.value = "";
    dialog.addEventListener("close", () => {
      pendingToken = null;
      if (field.value) sessionStorage.setItem(KEY, field.value);
      field.value = "";
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return pendingToken;
}
export const changeToken = () => requestToken();

async function call(path, options) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token ? { Authorization: "Bearer " + token } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, { error: "the server does not answer", hint: "is it still running?" });
    }
    if (response.ok) return response;
    if (response.status === 401) { find("token-button").hidden = false; await requestToken(); continue; }
    throw new Problem(response.status, await response.json().catch(() => ({})));
  }
}

export async function get(path, signal) {
  return (await call(path, { signal })).json();
}

function request(content, signal) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content), signal };
}

export async function post(path, content, signal) {
  return (await call(path, request(content, signal))).json();
}

// The response line by line, as it arrives.
export async function* lines(path, content, signal) {
  const response = await call(path, request(content, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
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
