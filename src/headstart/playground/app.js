// The page itself: its tabs, and which one is shown.

import { changeToken, get } from "/api.js";
import { start as startAttention } from "/attention.js";
import { start as startClassify } from "/classify.js";
import { find, say } from "/elements.js";
import { start as startGenerate } from "/generate.js";
import { start as startPlan } from "/plan.js";
import { shown as runsShown, start as startRuns } from "/runs.js";
import { start as startTranslate } from "/translate.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const NEEDS = { classify: "classify", generate: "generate", translate: "translate", attention: "attention" };
const STARTS = { classify: startClassify, generate: startGenerate, translate: startTranslate, attention: startAttention };

function show(name, focus) {
  for (const tab of tabs) {
    const isChosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    find(tab.getAttribute("aria-controls")).hidden = !isChosen;
    if (isChosen) {
      if (focus) tab.focus();
      tab.scrollIntoView({ block: "nearest", inline: "nearest" });
      document.title = tab.textContent + " – headstart playground";
    }
  }
  say(null);
  runsShown(name === "runs");
  window.dispatchEvent(new Event("resize")); // a picture that was hidden has a width now
}

const open = () => tabs.filter((tab) => !tab.hidden);
const named = () => open().map((tab) => tab.getAttribute("aria-controls")).find((name) => "#" + name === location.hash);

function choose(tab, focus) {
  const name = tab.getAttribute("aria-controls");
  history.replaceState(null, "", "#" + name);
  show(name, focus);
}

find("tabs").addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) choose(tab, false);
});
find("tabs").addEventListener("keydown", (event) => {
  const known = open(), at = known.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: known.length - 1 }[event.key];
  if (next === undefined || at < 0) return;
  event.preventDefault();
  choose(known[(next + known.length) % known.length], true);
});
window.addEventListener("hashchange", () => { if (named()) show(named(), false); });
find("token-button").addEventListener("click", async () => { await changeToken(); location.reload(); });

async function load() {
  const [{ models }, { runs }] = await Promise.all([get("/v1/models"), get("/v1/runs")]);
  find("served").textContent = runs.map((run) => run.name).join(", ");
  for (const [name, ability] of Object.entries(NEEDS)) {
    const able = models.filter((model) => model.can.includes(ability));
    find("tab-" + name).hidden = !able.length;
    if (able.length) STARTS[name](able);
  }
  startRuns(runs);
  show(named() || open()[0].getAttribute("aria-controls"), false);
  await startPlan();
  document.documentElement.dataset.ready = "yes";
}

load().catch(say);
