// Elements: text is always set as text, so that what a client or a model writes is never markup.

export const find = (id) => document.getElementById(id);

export function el(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Replace the children of an element; null is left out.
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

export const percent = (share) => (100 * share).toFixed(share < 0.0995 || share > 0.9905 ? 1 : 0) + " %";
export const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(2);
export const whole = (number) => Math.round(number).toLocaleString("en");

export function table(caption, head, rows) {
  const isNumber = (column) => column > 0;
  const cell = (name, text, column) =>
    el(name, { class: isNumber(column) ? "number" : null, scope: name === "th" ? (column ? "col" : "row") : null }, text);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...head.map((text, column) => el("th", { class: isNumber(column) ? "number" : null, scope: "col" }, text)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((text, column) => cell(column ? "td" : "th", text, column)))))));
}

export function say(problem) {
  const element = find("problem");
  if (!problem) { element.hidden = true; element.replaceChildren(); return; }
  element.replaceChildren(problem.message || String(problem), problem.hint ? el("span", { class: "hint" }, " — " + problem.hint) : "");
  element.hidden = false;
}

// Run `work` when the form is sent, or on Ctrl + Enter; the button waits, and a newer request ends an older one.
export function onSend(form, work) {
  const button = form.querySelector("button[type=submit]");
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) running.abort();
    const own = running = new AbortController();
    say(null);
    button.disabled = true;
    try {
      await work(own.signal);
    } catch (error) {
      if (error.name !== "AbortError") say(error);
    } finally {
      if (running === own) { button.disabled = false; running = null; }
    }
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  });
  return () => running && running.abort();
}

export function fillModels(select, models) {
  select.replaceChildren(...models.map((model) => el("option", { value: model.name }, model.name)));
}
