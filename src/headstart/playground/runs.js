// The runs: live curves during training, the report after it.

import { get } from "/api.js";
import { chart } from "/chart.js";
import { el, find, percent, say, whole } from "/elements.js";

const WAIT = 2000; // milliseconds between two requests for a run that trains
let chosen = null, timer = null, isShown = false, curves = null;

const state = (run) => (run.status === "finished" ? "finished" : run.progress === null ? "training" : "training, " + percent(run.progress));

function list(runs) {
  find("run-list").replaceChildren(...runs.map((run) => el("li", {},
    el("button", { type: "button", "aria-pressed": String(run.name === chosen), "data-run": run.name, onclick: () => choose(run.name) },
      el("bdi", {}, run.name),
      el("span", { class: "soft" }, run.kind + (run.objective ? ", " + run.objective : "")),
      el("span", { class: "state" }, state(run))))));
}

function clock(seconds) {
  if (seconds < 90) return Math.round(seconds) + " s";
  return seconds < 5400 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

function draw(run) {
  const step = (key) => curves.steps.map((point) => ({ x: point.step, y: point[key] }));
  const names = [...new Set(curves.evaluations.flatMap((point) => Object.keys(point.values)))];
  const evaluation = (name) => curves.evaluations.map((point) => ({ x: point.step, y: point.values[name] ?? null }));
  find("run-charts").replaceChildren(...[
    chart("training loss", step("loss"), false),
    ...names.filter((name) => name !== "perplexity").map((name) => chart("held-out " + name.replaceAll("_", " "), evaluation(name), true)),
    chart("tokens a second", step("tokens_per_second"), false),
  ].filter(Boolean));
  const last = curves.steps[curves.steps.length - 1];
  const words = run.status === "finished" ? "Finished" + (last ? " after " + whole(last.step) + " steps." : ".")
    : last ? "Step " + whole(last.step) + (run.seconds_left === null ? "" : ", about " + clock(run.seconds_left) + " to go") + "."
      : "Nothing is logged yet.";
  find("run-about").replaceChildren(
    ...(run.status === "finished" || run.progress === null ? [] : [el("progress", { max: "1", value: run.progress, "aria-label": "progress" }), " "]), words);
}

function showReport(run) {
  const element = find("run-report");
  if (!run.report) { element.replaceChildren(); element.dataset.run = ""; return; }
  if (element.dataset.run === run.name) return;
  element.dataset.run = run.name;
  element.replaceChildren(
    el("p", {}, el("a", { href: run.report, target: "_blank", rel: "noopener noreferrer" }, "Open the report by itself")),
    el("iframe", { class: "report", src: run.report, title: "Report of " + run.name, sandbox: "" }));
}

async function refresh() {
  clearTimeout(timer);
  if (!isShown || document.visibilityState === "hidden" || chosen === null) return;
  const name = chosen;
  try {
    const last = curves && curves.name === name && curves.steps.length ? curves.steps[curves.steps.length - 1].step : -1;
    const run = await get("/v1/runs/" + encodeURIComponent(name) + (last >= 0 ? "?after=" + last : ""));
    if (name !== chosen) return;
    if (!curves || curves.name !== name) curves = { name, steps: [], evaluations: [] };
    const known = new Set(curves.evaluations.map((point) => point.step));
    curves.steps = [...curves.steps, ...run.steps];
    curves.evaluations = [...curves.evaluations, ...run.evaluations.filter((point) => !known.has(point.step))];
    find("run-name").textContent = name;
    find("run-detail").hidden = false;
    draw(run);
    showReport(run);
    if (run.status !== "finished") {
      timer = setTimeout(refresh, WAIT);
      list((await get("/v1/runs")).runs);
    }
  } catch (error) {
    say(error);
    timer = setTimeout(refresh, 5 * WAIT);
  }
}

function choose(name) {
  chosen = name;
  curves = null;
  for (const button of document.querySelectorAll("#run-list button")) button.setAttribute("aria-pressed", String(button.dataset.run === name));
  refresh();
}

export function start(runs) {
  list(runs);
  document.addEventListener("visibilitychange", refresh);
  if (runs.length) choose((runs.find((run) => run.status === "running") || runs[0]).name);
}

export function shown(is) {
  isShown = is;
  if (is) refresh();
  else clearTimeout(timer);
}
