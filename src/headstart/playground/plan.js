// The plan of a run before it starts: parameters, memory, time, and where it fits.

import { get, post } from "/api.js";
import { el, find, onSend, table, whole } from "/elements.js";

const MIB = 2 ** 20, GIB = 2 ** 30;
const NUMBERS = ["layers", "width", "attention_heads", "feed_forward", "vocabulary", "length", "batch", "tokens", "price"];

function hours(value) {
  const seconds = 3600 * value;
  if (seconds < 90) return seconds.toFixed(1) + " s";
  if (seconds < 5400) return (seconds / 60).toFixed(1) + " min";
  return seconds < 172800 ? value.toFixed(1) + " h" : (value / 24).toFixed(1) + " days";
}

function draw(found) {
  const { parameters, memory, time, verdict, devices } = found;
  const cost = time.cost === null ? "" : ", cost " + time.cost.toFixed(2);
  const hasCost = devices.some((row) => row.cost !== null);
  const facts = el("section", {},
    el("h2", {}, whole(parameters.total) + " parameters"),
    el("p", {}, verdict.fits
      ? "Yes, it trains on this machine (" + verdict.device + "), with at most " + whole(verdict.largest_batch) + " texts a batch."
      : "No, it does not fit on this machine (" + verdict.device + ")."),
    el("p", {}, whole(time.tokens) + " tokens take about " + hours(time.hours) + " there" + cost + "."),
    ...(verdict.advice.length ? [el("ul", {}, ...verdict.advice.map((line) => el("li", {}, line)))] : []));
  const blocks = parameters.blocks.map((block) => [block.name, block.symbols, whole(block.times), whole(block.total)]);
  const parts = Object.entries(memory.parts).sort((a, b) => b[1] - a[1])
    .map(([name, size]) => [name, (size / MIB).toFixed(1), (100 * size / memory.peak_bytes).toFixed(0) + " %"]);
  const fits = devices.map((row) => [row.device, String(row.memory_gib), row.needs_gib.toFixed(1), row.fits ? "yes" : "no",
    whole(row.largest_batch), hours(row.hours), ...(hasCost ? [row.cost.toFixed(2)] : [])]);
  find("plan-result").replaceChildren(facts,
    el("section", {}, table("Parameters by block", ["block", "formula", "times", "total"], blocks)),
    el("section", {}, table((memory.peak_bytes / GIB).toFixed(2) + " GiB at the peak: " + whole(memory.batch) + " texts of " +
      whole(memory.length) + " tokens, " + memory.precision, ["part", "MiB", "share"], parts)),
    el("section", {}, table("Will it train there?", ["device", "GiB", "needs", "fits", "batch ≤", "time", ...(hasCost ? ["cost"] : [])], fits)));
}

export async function start() {
  const described = (await get("/openapi.json")).components.schemas.PlanRequest.properties;
  find("plan-preset").replaceChildren(...described.preset.enum.map((name) => el("option", { value: name, selected: name === "tiny" }, name)));
  find("plan-objective").append(...described.objective.anyOf[0].enum.map((name) => el("option", { value: name }, name)));
  onSend(find("plan-form"), async (signal) => {
    const query = { preset: find("plan-preset").value };
    if (find("plan-objective").value) query.objective = find("plan-objective").value;
    for (const name of NUMBERS) {
      const value = find("plan-" + name.replaceAll("_", "-")).value;
      if (value !== "") query[name] = Number(value);
    }
    draw(await post("/v1/plan", query, signal));
  });
}
