// A curve as a small SVG figure; the style sheet gives the colours.

import { el } from "/elements.js";

const WIDTH = 360, HEIGHT = 200, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 26;

function svg(name, given, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Round numbers that divide an axis into a few steps.
export function ticks(low, high, most = 5) {
  const span = high - low || Math.abs(high) || 1, rough = span / most;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * size).find((wide) => span / wide <= most) || 10 * size;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

function short(number) {
  const size = Math.abs(number);
  if (size >= 1e6) return +(number / 1e6).toPrecision(3) + " M";
  if (size >= 1e4) return +(number / 1e3).toPrecision(3) + " k";
  return String(+number.toPrecision(3));
}

export function chart(title, points, hasDots) {
  const known = points.filter((point) => point.y !== null && point.y !== undefined);
  if (!known.length) return null;
  const xs = known.map((point) => point.x), ys = known.map((point) => point.y);
  const low = Math.min(...ys), high = Math.max(...ys), pad = (high - low || Math.abs(high) || 1) * 0.06;
  const left = Math.min(...xs), right = Math.max(...xs);
  const x = (value) => LEFT + ((value - left) / (right - left || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low + pad) / (high - low + 2 * pad)) * (HEIGHT - TOP - BOTTOM);
  const path = known.map((point, i) => (i ? "L" : "M") + x(point.x).toFixed(1) + " " + y(point.y).toFixed(1)).join("");
  const parts = [
    ...ticks(low - pad, high + pad, 4).flatMap((tick) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)),
    ]),
    ...ticks(left, right, 4).map((tick) => svg("text", { x: x(tick), y: HEIGHT - 8, "text-anchor": "middle" }, short(tick))),
    svg("path", { class: "line", d: path }),
    ...(hasDots ? known.map((point) => svg("circle", { class: "dot", cx: x(point.x), cy: y(point.y), r: 2.5 })) : []),
  ];
  const last = known[known.length - 1];
  const words = title + " by step: from " + short(ys[0]) + " to " + short(last.y) + " at step " + last.x + "; lowest " + short(low) + ", highest " + short(high);
  return el("figure", { class: "chart" },
    el("figcaption", {}, title + ": " + short(last.y)),
    svg("svg", { viewBox: "0 0 " + WIDTH + " " + HEIGHT, role: "img", "aria-label": words }, ...parts));
}
