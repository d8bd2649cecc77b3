// Attention maps in plain JavaScript. Tokens are set as text, never as HTML.
//
// `exploreAttention(root, data, usesHash)` draws the thumbnails, tokens and the enlarged map inside `root`, a document or
// a shadow root, and returns a function that removes its listeners. `data.weights` are multiples of 1/65535; a byte of
// `data.seen` is 1 where the query may attend to the key. With `usesHash` the URL's hash holds the selected map.

function exploreAttention(root, data, usesHash) {
  const find = (id) => root.getElementById(id), life = new AbortController();
  const { weights, seen } = data;
  const T = data.queries.length, S = data.keys.length;
  const at = (layer, head, q, k) => weights[((layer * data.heads + head) * T + q) * S + k] / 65535;
  const percent = (weight) => (100 * weight).toFixed(weight < 0.0995 ? 1 : 0) + " %";
  const state = { layer: 0, head: 0, direction: "from", pinned: 0, shown: 0, side: "queries", cell: null };
  const thumbs = [...root.querySelectorAll(".thumb")];
  let ramp = [], masked = [], ink = "", soft = "", highlight = "";

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const stops = [0, 1, 2, 3].map((i) => rgb(value("--ramp-" + i)));
    ramp = Array.from({ length: 256 }, (_, i) => {
      const position = Math.min(2.9999, (i / 255) * 3), low = Math.floor(position), part = position - low;
      return [0, 1, 2].map((c) => Math.round(stops[low][c] * (1 - part) + stops[low + 1][c] * part));
    });
    masked = rgb(value("--masked")); ink = value("--ink"); soft = value("--soft"); highlight = value("--arm-1");
  }
  const shade = (fraction) => ramp[Math.max(0, Math.min(255, Math.round(fraction * 255)))];
  const css = (colour) => "rgb(" + colour.join(",") + ")";
  const isDark = (c) => 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] < 140;

  function peakOf(layer, head) {
    const start = (layer * data.heads + head) * T * S;
    let peak = 1;
    for (let i = start; i < start + T * S; i++) if (weights[i] > peak) peak = weights[i];
    return peak / 65535;
  }
  function pixels(layer, head) {
    const canvas = document.createElement("canvas");
    canvas.width = S; canvas.height = T;
    const context = canvas.getContext("2d"), image = context.createImageData(S, T), peak = peakOf(layer, head);
    for (let q = 0; q < T; q++) for (let k = 0; k < S; k++) {
      const colour = seen[q * S + k] ? shade(at(layer, head, q, k) / peak) : masked;
      image.data.set([...colour, 255], 4 * (q * S + k));
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
  function drawThumbs() {
    for (const thumb of thumbs) {
      const canvas = thumb.querySelector("canvas"), side = Math.max(208, T, S);
      canvas.width = canvas.height = side;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = T > side;
      context.drawImage(pixels(+thumb.dataset.layer, +thumb.dataset.head), 0, 0, side, side);
    }
  }

  // The weights of the shown token as a query (a row of the map) or as a key (a column).
  function weightsOfToken() {
    const isRow = data.isSelf ? state.direction === "from" : state.side === "queries";
    const words = isRow ? data.keys : data.queries;
    return words.map((word, i) => {
      const q = isRow ? state.shown : i, k = isRow ? i : state.shown;
      return { word, weight: at(state.layer, state.head, q, k), allowed: seen[q * S + k] === 1, index: i };
    });
  }
  const clip = (word, most) => (word.length > most ? word.slice(0, most - 1) + "…" : word);

  function showToken(withSummary) {
    const found = weightsOfToken(), isRow = data.isSelf ? state.direction === "from" : state.side === "queries";
    const own = data[state.side][state.shown], target = find(data.isSelf || !isRow ? "queries" : "keys");
    const top = Math.max(1e-9, ...found.map((item) => item.weight));
    for (const button of root.querySelectorAll(".token")) {
      button.style.background = button.style.color = ""; button.classList.remove("chosen", "masked");
    }
    found.forEach((item) => {
      const button = target.children[item.index], colour = shade(item.weight / top);
      button.style.background = css(colour);
      button.style.color = isDark(colour) ? "#ffffff" : "#10151d";
      button.classList.toggle("masked", !item.allowed);
    });
    find(state.side).children[state.shown].classList.add("chosen");
    const best = found.filter((item) => item.allowed).sort((a, b) => b.weight - a.weight).slice(0, 6);
    if (withSummary) {
      find("summary").textContent = "“" + own + "” (token " + (state.shown + 1) + ") " +
        (isRow ? "attends to " : "is attended to by ") +
        best.slice(0, 3).map((item) => "“" + item.word + "” " + percent(item.weight)).join(", ") + " …";
    }
    find("top-weights").replaceChildren(...best.map((item) => {
      const line = document.createElement("li"), word = document.createElement("bdi");
      const lane = document.createElement("span"), bar = document.createElement("i"), number = document.createElement("span");
      word.textContent = item.word; bar.style.width = 100 * item.weight / top + "%"; number.textContent = percent(item.weight);
      lane.append(bar); line.append(word, lane, number);
      return line;
    }));
    drawMap();
  }

  let layout = { cell: 10, left: 0, top: 0 };
  function drawMap() {
    const canvas = find("map"), context = canvas.getContext("2d"), dense = window.devicePixelRatio || 1;
    const room = canvas.parentElement.clientWidth - 4, font = (size) => size + "px system-ui, 'DejaVu Sans', sans-serif";
    context.font = font(12);
    const widest = (words) => Math.min(110, Math.max(...words.map((w) => context.measureText(clip(w, 16)).width))) + 10;
    const left = widest(data.queries), top = widest(data.keys);
    const cell = Math.max(5, Math.min(30, Math.floor((room - left - 4) / S)));
    layout = { cell, left, top };
    const width = left + S * cell + 4, height = top + T * cell + 4;
    canvas.width = width * dense; canvas.height = height * dense;
    canvas.style.width = width + "px"; canvas.style.height = height + "px";
    context.scale(dense, dense);
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels(state.layer, state.head), left, top, S * cell, T * cell);
    const isRow = data.isSelf ? state.direction === "from" : state.side === "queries";
    const row = state.cell ? state.cell[0] : isRow ? state.shown : -1;
    const column = state.cell ? state.cell[1] : isRow ? -1 : state.shown;
    context.strokeStyle = highlight; context.lineWidth = 2;
    if (row >= 0) context.strokeRect(left - 1, top + row * cell - 1, S * cell + 2, cell + 2);
    if (column >= 0) context.strokeRect(left + column * cell - 1, top - 1, cell + 2, T * cell + 2);
    const size = Math.min(13, Math.max(9, cell - 1)), step = Math.ceil(10 / cell);
    context.textBaseline = "middle"; context.textAlign = "right";
    data.queries.forEach((word, q) => {
      if (q % step && q !== row) return;
      context.font = (q === row ? "bold " : "") + font(size); context.fillStyle = q === row ? ink : soft;
      context.fillText(clip(word, 16), left - 6, top + (q + 0.5) * cell, left - 6);
    });
    context.textAlign = "left";
    data.keys.forEach((word, k) => {
      if (k % step && k !== column) return;
      context.save();
      context.translate(left + (k + 0.5) * cell, top - 6); context.rotate(-Math.PI / 2);
      context.font = (k === column ? "bold " : "") + font(size); context.fillStyle = k === column ? ink : soft;
      context.fillText(clip(word, 16), 0, 0, top - 6);
      context.restore();
    });
  }

  function choose(layer, head, focus) {
    state.layer = layer; state.head = head; state.cell = null;
    for (const thumb of thumbs) {
      const isChosen = +thumb.dataset.layer === layer && +thumb.dataset.head === head;
      thumb.setAttribute("aria-pressed", isChosen); thumb.tabIndex = isChosen ? 0 : -1;
      if (isChosen && focus) thumb.focus();
    }
    const name = "layer " + (layer + 1) + ", attention head " + (head + 1);
    find("which").textContent = name[0].toUpperCase() + name.slice(1);
    find("map").setAttribute("aria-label", "heat map of " + name + "; the tokens above show the same weights as text");
    find("peak").textContent = peakOf(layer, head).toFixed(2);
    if (usesHash) try { history.replaceState(null, "", "#" + (layer + 1) + "." + (head + 1)); } catch (error) { /* a sandboxed page */ }
    showToken(true);
  }
  function point(side, index, pin) {
    state.side = side; state.shown = index; state.cell = null;
    if (pin) { state.pinned = index; state.pinnedSide = side; }
    showToken(true);
  }
  function unpoint() {
    state.side = state.pinnedSide || "queries"; state.shown = state.pinned; state.cell = null;
    showToken(false);
  }

  function buildStrip(side) {
    const strip = find(side);
    data[side].forEach((word, index) => {
      const button = document.createElement("button");
      button.type = "button"; button.className = "token"; button.textContent = word;
      button.tabIndex = index ? -1 : 0;
      button.addEventListener("mouseenter", () => point(side, index, false));
      button.addEventListener("focus", () => point(side, index, true));
      button.addEventListener("click", () => point(side, index, true));
      strip.append(button);
    });
    strip.addEventListener("mouseleave", unpoint);
    strip.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(data[side].length - 1, state.shown + step));
      [...strip.children].forEach((child, i) => { child.tabIndex = i === next ? 0 : -1; });
      strip.children[next].focus();
    });
  }

  find("heads").addEventListener("click", (event) => {
    const thumb = event.target.closest(".thumb");
    if (thumb) choose(+thumb.dataset.layer, +thumb.dataset.head, false);
  });
  find("heads").addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const inside = (value, most) => Math.max(0, Math.min(most - 1, value));
    choose(inside(state.layer + move[0], data.layers), inside(state.head + move[1], data.heads), true);
  });
  for (const radio of root.querySelectorAll("input[name=direction]")) {
    radio.addEventListener("change", () => { state.direction = radio.value; showToken(true); });
  }
  find("map").addEventListener("mousemove", (event) => {
    const box = find("map").getBoundingClientRect();
    const q = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
    const k = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
    const isInside = q >= 0 && q < T && k >= 0 && k < S;
    state.cell = isInside ? [q, k] : null;
    find("cell-weight").textContent = !isInside ? "" : "“" + data.queries[q] + "” → “" + data.keys[k] + "”: " +
      (seen[q * S + k] ? percent(at(state.layer, state.head, q, k)) : "hidden by the mask");
    drawMap();
  });
  find("map").addEventListener("mouseleave", () => { state.cell = null; find("cell-weight").textContent = ""; drawMap(); });
  const whileAlive = { signal: life.signal };
  window.addEventListener("resize", drawMap, whileAlive);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours(); drawThumbs(); showToken(false);
  }, whileAlive);

  readColours();
  buildStrip("queries");
  if (!data.isSelf) buildStrip("keys");
  drawThumbs();
  const hash = usesHash ? /^#(\d+)\.(\d+)$/.exec(location.hash) : null;
  const isValid = hash && hash[1] >= 1 && hash[1] <= data.layers && hash[2] >= 1 && hash[2] <= data.heads;
  state.pinned = state.shown = Math.min(1, T - 1);
  choose(isValid ? hash[1] - 1 : data.start[0], isValid ? hash[2] - 1 : data.start[1], false);
  return () => life.abort();
}
