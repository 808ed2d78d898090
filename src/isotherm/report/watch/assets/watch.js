(function () {
"use strict";

// The page's policy allows no style attributes in HTML, which plotly sets on a few elements: set one by one they may be.
const setAttribute = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style" && this.style) this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

// Nor does it allow style sheets made by scripts: plotly brings one for geographic maps, which this page has not.
document.head.appendChild = function (node) {
  return node.tagName === "STYLE" && node.textContent ? node : Node.prototype.appendChild.call(this, node);
};

// -- small things ---------------------------------------------------------------------------------------------------

const by = (id) => document.getElementById(id);
const look = JSON.parse(by("look").textContent);
const frozenText = by("frozen");
const own = document.currentScript;
const INK = "#1f2933", SOFT = "#52606d", GRID = "#e8ebee";
const STATES = {
  finished: {words: "finished", symbol: "square"},
  partial: {words: "some seeds done", symbol: "diamond"},
  running: {words: "in training", symbol: "square-open-dot"},
  missing: {words: "not run yet", symbol: "circle-open"},
  diverged: {words: "diverged", symbol: "x-thin-open"},
  failed: {words: "failed", symbol: "triangle-up"},
};
const SIGNS = {
  finished: '<rect x="2" y="2" width="12" height="12" fill="#2a788e"/>',
  partial: '<path d="M8 1l7 7-7 7-7-7z" fill="#2a788e"/>',
  running: '<rect x="2" y="2" width="12" height="12" fill="none" stroke="#0072b2" stroke-width="2"/><circle cx="8" cy="8" r="2" fill="#0072b2"/>',
  missing: '<circle cx="8" cy="8" r="3" fill="none" stroke="#7b8794" stroke-width="1.3"/>',
  diverged: '<path d="M3 3l10 10M13 3L3 13" stroke="#7b3f00" stroke-width="2.2"/>',
  failed: '<path d="M8 2l7 12H1z" fill="#b3261e"/>',
  optimum: '<circle cx="8" cy="8" r="5.5" fill="none" stroke="#1f2933" stroke-width="2"/><path d="M8 0v16" stroke="#1f2933" stroke-width="1.4"/>',
  open: '<path d="M4.5 2.5h7L15 8l-3.5 5.5h-7L1 8z" fill="none" stroke="#7b8794" stroke-width="2"/>',
  other: '<path d="M8 2l6 6-6 6-6-6z" fill="none" stroke="#d55e00" stroke-width="2"/>',
  isotherm: '<path d="M1 15L15 1" stroke="#9aa5b1" stroke-width="1.4" stroke-dasharray="2 2"/>',
};
const SVG = "http://www.w3.org/2000/svg";
const config = {responsive: false, displaylogo: false, displayModeBar: false, showSendToCloud: false, plotlyServerURL: "", scrollZoom: false};

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
// Text with ε_eff set as a formula; everything else stays text.
function formula(text) {
  const pieces = String(text).split("ε_eff");
  return pieces.flatMap((piece, k) => k ? ["ε", element("sub", {}, "eff"), piece] : [piece]);
}
// Text for plotly, which reads some HTML.
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const plotted = (text) => escaped(text).replace(/ε_eff/g, "ε<sub>eff</sub>");
const whole = (number) => Number(number).toLocaleString("en");
const plural = (number, noun) => whole(number) + " " + noun + (number === 1 ? "" : "s");
const compact = (number) => Number(number).toLocaleString("en", {notation: "compact", compactDisplay: "long"});
const log2 = Math.log2;

function duration(seconds) {
  if (seconds < 90) return Math.round(seconds) + " s";
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return minutes + " min";
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? hours + " h " + (minutes % 60) + " min" : Math.round(hours / 24) + " days";
}
function rateText(rate) {
  const k = Math.round(log2(rate));
  if (Math.abs(2 ** k / rate - 1) < 1e-9 && look.rates[k] !== undefined) return look.rates[k];
  return String(Number(rate.toPrecision(3)));
}
function valueText(value, head, data) {
  if (value === null || value === undefined) return "–";
  return data === "test" && head.percent ? (100 * value).toFixed(1) + " %" : String(Number(value.toPrecision(4)));
}
function sign(name) {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 16 16");
  drawn.setAttribute("aria-hidden", "true");
  drawn.innerHTML = SIGNS[name];  // a constant of this file
  return drawn;
}
function fill(list, items) { by(list).replaceChildren(...items); }
function show(id, yes) { by(id).hidden = !yes; }
function setText(id, text) { const e = by(id); if (e.textContent !== text) e.textContent = text; }

// -- where things come from -----------------------------------------------------------------------------------------

let frozen = null;
let plotly = null;

function loadPlotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  return new Promise((resolve, reject) => {
    const script = element("script", {src: own.dataset.plotly});
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly cannot be loaded"));
    document.head.append(script);
  });
}
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
async function getState(map) {
  if (frozen) return frozen.states[map] || Object.values(frozen.states)[0];
  const answer = await fetch("state" + (map ? "?map=" + encodeURIComponent(map) : ""));
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
async function getCell(store, map, row, column) {
  if (frozen) return frozen.cells[store][map + "|" + row + "|" + column];
  const query = new URLSearchParams({store, map, row, column});
  const answer = await fetch("cell?" + query);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// -- what is chosen -------------------------------------------------------------------------------------------------

const chosen = {map: null, data: "test", runs: "best", rate: "effective"};
let state = null;
for (const input of document.querySelectorAll(".controls input[name=data], .controls input[name=runs], .controls input[name=rate]")) {
  input.addEventListener("change", () => { chosen[input.name] = input.value; drawMaps(true); });
}
by("maps").addEventListener("change", () => { chosen.map = by("maps").value; refresh(); });

// -- the map --------------------------------------------------------------------------------------------------------

class CellMap {
  constructor(id, here, store) {
    this.place = by(id); this.here = by(here); this.store = store;
    this.cursor = null; this.drawn = ""; this.head = null; this.cells = [];
    this.place.addEventListener("keydown", (event) => this.key(event));
    this.place.addEventListener("focus", () => this.mark(this.cursor || this.start()));
    this.place.addEventListener("blur", () => this.hideCursor());
  }

  // The cells as flat records, with what is chosen applied.
  take(head) {
    const running = new Map((head.running || []).map(([row, column, n]) => [row + "|" + column, n]));
    const shift = chosen.rate === "bare" ? log2(1 - head.momentum) : 0;
    this.head = head;
    this.shift = shift;
    this.cells = [];
    head.grids.forEach((grid, row) => {
      const values = grid[chosen.data], x = log2(grid.batch_size);
      grid.rates.forEach((rate, column) => {
        const inTraining = running.get(row + "|" + column) || 0;
        const best = chosen.runs === "best";
        this.cells.push({
          row, column, x, rate, y: this.height(rate, grid.batch_size), size: grid.batch_size, label: grid.labels[column],
          state: inTraining && grid.states[column] !== "failed" ? "running" : grid.states[column], inTraining,
          value: (best ? values.best : values.all)[column], n: (best ? values.best_n : values.all_n)[column],
          low: values.low[column], high: values.high[column], allN: values.all_n[column],
          done: grid.done[column], diverged: grid.diverged[column], failed: grid.failed[column],
        });
      });
    });
  }
  height(rate, size) { return log2(rate) + this.shift - (chosen.rate === "temperature" ? log2(size) : 0); }
  isOpen(grid) { return Boolean(grid.optimum) && !grid.optimum.is_complete; }
  optimum(row) {
    const grid = this.head.grids[row];
    return chosen.data === "test" ? grid.optimum : grid.train_optimum;
  }

  words(cell) {
    const head = this.head, temperature = cell.rate / cell.size;
    const k = Math.round(log2(temperature));
    const isPower = Math.abs(2 ** k / temperature - 1) < 1e-9 && look.powers[k];
    const lines = ["B = " + whole(cell.size) + ", " + head.symbol + " = " + cell.label + ", " + head.ratio + " = " + (isPower || Number(temperature.toPrecision(3)))];
    const parts = [STATES[cell.state].words];
    parts.push(cell.done + " of " + plural(head.num_seeds, "run") + " done");
    if (cell.inTraining) parts.push(cell.inTraining + " in training");
    if (cell.diverged) parts.push(cell.diverged + " diverged");
    if (cell.failed) parts.push(cell.failed + " failed");
    lines.push(parts.join(", "));
    if (cell.value !== null) {
      const label = chosen.data === "test" ? head.test_label.replace(" (%)", "") : head.train_label;
      const which = chosen.runs === "best" ? "best " + cell.n : "all " + cell.n;
      let text = label + " " + valueText(cell.value, head, chosen.data) + " (" + which + ", n = " + cell.n + ")";
      if (cell.low !== null && cell.high !== null && cell.allN > 1)
        text += "; 95 % interval of the mean of all " + cell.allN + " [" + valueText(cell.low, head, chosen.data) + ", " + valueText(cell.high, head, chosen.data) + "]";
      lines.push(text);
    }
    return lines;
  }

  async draw(head, law, other) {
    const wanted = JSON.stringify([head, law, other && other.map((grid) => grid.optimum), chosen, this.place.clientWidth]);
    if (wanted === this.drawn) return;
    this.drawn = wanted;
    this.take(head);
    const cells = this.cells;
    if (!cells.length) return;
    const xs = head.grids.map((grid) => log2(grid.batch_size));
    const span = (values, pad) => [Math.min(...values) - pad, Math.max(...values) + pad];
    const xRange = span(xs, 0.75);
    let lowest = Infinity, highest = -Infinity;
    for (const cell of cells) { lowest = Math.min(lowest, cell.y); highest = Math.max(highest, cell.y); }
    for (const grid of other || []) {  // what is drawn of the second store is to be seen, too
      const best = chosen.data === "test" ? grid.optimum : grid.train_optimum;
      if (!best) continue;
      const y = this.height(best.rate, grid.batch_size);
      lowest = Math.min(lowest, y); highest = Math.max(highest, y);
    }
    const yRange = [lowest - 0.75, highest + 0.75];
    // One octave is as long on both axes, so that isotherms rise at 45 degrees.
    const width = Math.max(260, this.place.clientWidth), margin = {l: 58, r: 12, t: 12, b: 46};
    const perOctave = Math.min((width - margin.l - margin.r) / (xRange[1] - xRange[0]), 560 / (yRange[1] - yRange[0]), 72);
    const inner = Math.max(180, perOctave * (yRange[1] - yRange[0]));
    const spare = ((width - margin.l - margin.r) / perOctave - (xRange[1] - xRange[0])) / 2;
    const xShown = [xRange[0] - spare, xRange[1] + spare];
    const marker = Math.max(2.5, Math.min(26, perOctave * 0.82 * Math.min(nearest(xs), this.nearestRates())));
    const tall = (inner / perOctave - (yRange[1] - yRange[0])) / 2;
    const yShown = [yRange[0] - tall, yRange[1] + tall];
    const scale = this.scale();
    const traces = [
      ...this.isotherms(xShown, yShown, 18 / perOctave),
      ...this.cellTraces(scale, marker),
      ...this.lawTraces(law),
      ...(other ? [this.optimaTrace(other, "#d55e00", "diamond-open", "second store", 0.12)] : []),
      this.optimaTrace(head.grids, "#fff", "circle-open", "", 0, 3),
      this.optimaTrace(head.grids.filter((grid) => !this.isOpen(grid)), INK, "circle-open", "optimum", 0),
      this.optimaTrace(head.grids.filter((grid) => this.isOpen(grid)), "#7b8794", "hexagon-open", "optimum so far", 0),
    ];
    this.ringSize = marker + 10;
    const layout = {
      width, height: inner + margin.t + margin.b, margin, showlegend: false, dragmode: false, hovermode: "closest",
      font: {family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: INK},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: {bgcolor: "white", font: {color: INK}, align: "left"},
      xaxis: {...axis("batch size B"), range: xShown, ...ticks(head.grids.map((g) => [log2(g.batch_size), whole(g.batch_size)]), Math.floor(width / 62))},
      yaxis: {...axis(rateTitle()), range: yShown, ...ticks(octaveTicks(yShown), 11)},
      shapes: this.kinkShapes(law, yShown),
    };
    await plotly.react(this.place, traces, layout, config);
    if (!this.listens) {
      this.listens = true;
      this.place.on("plotly_click", (event) => {
        const data = event.points[0].customdata;
        if (data) { const cell = this.at(data[0], data[1]); this.cursor = [cell.row, cell.column]; this.say(cell); this.open(); }
      });
    }
    const counts = {};
    for (const cell of cells) counts[cell.state] = (counts[cell.state] || 0) + 1;
    const told = Object.entries(counts).map(([name, n]) => plural(n, "cell") + " " + STATES[name].words).join(", ");
    this.place.setAttribute("aria-label", "Map of batch size by learning rate, " + head.title + ": " + told);
    if (this.store === 0) this.legends(scale, counts, law, Boolean(other));
    if (document.activeElement === this.place && this.cursor) this.mark(this.cursor);
  }

  nearestRates() {
    return Math.min(1, ...this.head.grids.map((grid) => nearest(grid.rates.map(log2))));
  }
  // Colours run from worst to best shown; what is worse than four cells in five is as dark as the worst.
  scale() {
    const isLoss = chosen.data === "train" || this.head.test_sign < 0;
    const known = this.cells.filter((cell) => cell.value !== null && cell.state !== "diverged").map((cell) => cell.value);
    const useLog = isLoss && known.every((value) => value > 0);
    const good = (value) => (isLoss ? -1 : 1) * (useLog ? Math.log(value) : value);
    const sorted = known.map(good).sort((a, b) => a - b);
    const low = sorted[Math.floor(0.2 * (sorted.length - 1))], high = sorted[sorted.length - 1];
    const back = (value) => { const v = isLoss ? -value : value; return useLog ? Math.exp(v) : v; };
    return {of: (value) => high > low ? Math.min(1, Math.max(0, (good(value) - low) / (high - low))) : 1, low: sorted.length ? back(low) : null, high: sorted.length ? back(high) : null};
  }
  cellTraces(scale, marker) {
    const looks = {
      finished: {size: marker}, partial: {size: Math.max(4, 0.8 * marker)},
      running: {size: Math.max(6, 0.8 * marker), color: "#0072b2", line: {width: 2}},
      missing: {size: Math.max(3, Math.min(7, 0.35 * marker)), color: "#7b8794", line: {width: 1}},
      diverged: {size: Math.max(4, Math.min(11, 0.5 * marker)), color: "#7b3f00", line: {width: 2, color: "#7b3f00"}},
      failed: {size: Math.max(6, Math.min(14, 0.7 * marker)), color: "#b3261e"},
    };
    return Object.keys(STATES).map((name) => {
      const members = this.cells.filter((cell) => cell.state === name);
      const coloured = name === "finished" || name === "partial";
      const colours = coloured ? {
        color: members.map((cell) => cell.value === null ? 0 : scale.of(cell.value)), cmin: 0, cmax: 1, showscale: false,
        colorscale: look.colours.map((colour, k) => [k / (look.colours.length - 1), colour]),
      } : {};
      return {
        type: members.length > 6000 ? "scattergl" : "scatter", mode: "markers", name: STATES[name].words,
        x: members.map((cell) => cell.x), y: members.map((cell) => cell.y), customdata: members.map((cell) => [cell.row, cell.column]),
        text: members.map((cell) => this.words(cell).map(plotted).map(wrapped).join("<br>")), hovertemplate: "%{text}<extra></extra>",
        marker: {symbol: STATES[name].symbol, line: {width: 0}, ...looks[name], ...colours},
      };
    });
  }
  // Labels stand above the ends of their lines, far enough inside that the figure does not cut them off.
  isotherms([left, right], [bottom, top], inside) {
    const tilt = chosen.rate === "temperature" ? 0 : 1;
    const least = Math.ceil(bottom - this.shift - tilt * right), most = Math.floor(top - this.shift - tilt * left);
    const every = Math.max(1, Math.ceil((most - least) / 9));
    const lines = {x: [], y: []}, labels = {x: [], y: [], text: []};
    for (let k = least; k <= most; k += every) {
      const at = (x) => k + this.shift + tilt * x;
      const from = tilt ? Math.max(left, bottom - k - this.shift) : left, to = tilt ? Math.min(right, top - k - this.shift) : right;
      if (to - from < 0.3 + inside) continue;
      lines.x.push(from, to, null); lines.y.push(at(from), at(to), null);
      if (to - left < 3.5 * inside) continue;  // its label would reach over the axis
      labels.x.push(to - inside); labels.y.push(at(to - inside)); labels.text.push("T = " + (look.powers[k] || "2^" + k));
    }
    return [
      {type: "scatter", mode: "lines", ...lines, hoverinfo: "skip", line: {color: "#9aa5b1", width: 1, dash: "dot"}},
      {type: "scatter", mode: "text", ...labels, hoverinfo: "skip", textposition: "top left", textfont: {size: 10, color: SOFT}},
    ];
  }
  lawTraces(law) {
    if (!law) return [];
    const line = {color: "#d55e00", width: 2.5, dash: law.shows_kink ? "solid" : "dash"};
    return [{type: "scatter", mode: "lines", x: law.corners.map((c) => log2(c[0])), y: law.corners.map((c) => this.height(c[1], c[0])), hoverinfo: "skip", line}];
  }
  kinkShapes(law, [bottom, top]) {
    if (!law || !law.kink) return [];
    const last = log2(Math.max(...this.head.grids.map((grid) => grid.batch_size))) + 0.75;
    const band = {type: "rect", x0: log2(law.kink.low), x1: law.kink.high === null ? last : log2(law.kink.high), y0: bottom, y1: top, fillcolor: "rgba(213,94,0,0.10)", line: {width: 0}, layer: "below"};
    const line = {type: "line", x0: log2(law.kink.estimate), x1: log2(law.kink.estimate), y0: bottom, y1: top, line: {color: "#d55e00", width: 1.2, dash: "dash"}, layer: "below"};
    return [band, line];
  }
  optimaTrace(grids, colour, symbol, name, away, halo = 0) {
    const found = grids.map((grid) => [grid, chosen.data === "test" ? grid.optimum : grid.train_optimum]).filter((pair) => pair[1]);
    const at = (grid, rate) => this.height(rate, grid.batch_size);
    return {
      type: "scatter", mode: "markers", name, x: found.map(([g]) => log2(g.batch_size) + away), y: found.map(([g, o]) => at(g, o.rate)), hoverinfo: "skip",
      marker: {symbol, size: 13, color: colour, line: {width: 2.4 + halo}},
      error_y: {type: "data", symmetric: false, color: colour, thickness: 1.6 + halo, width: 6, array: found.map(([g, o]) => at(g, o.high) - at(g, o.rate)), arrayminus: found.map(([g, o]) => at(g, o.rate) - at(g, o.low))},
    };
  }
  legends(scale, counts, law, isCompared) {
    const items = Object.keys(STATES).filter((name) => counts[name]).map((name) => element("li", {}, sign(name), STATES[name].words));
    items.push(element("li", {}, sign("optimum"), chosen.data === "test" ? "optimum of " + this.head.tuned_on + ", with the rates tried within one standard deviation of the best" : "least " + this.head.train_label));
    if (this.head.grids.some((grid) => this.isOpen(grid))) items.push(element("li", {}, sign("open"), "optimum so far, runs are missing"));
    if (isCompared) items.push(element("li", {}, sign("other"), "optimum of the second store"));
    items.push(element("li", {}, sign("isotherm"), element("span", {}, ...formula(this.head.has_temperature ? "isotherm, T = ε_eff / B" : "ε / B constant"))));
    if (law && law.kink) items.push(element("li", {}, "shaded: 95 % interval of the kink"));
    fill("legend", items);
    by("scale-bar").style.background = "linear-gradient(90deg, " + look.colours.join(", ") + ")";
    const label = chosen.data === "test" ? this.head.test_label.replace(" (%)", "") : this.head.train_label;
    setText("scale-low", scale.low === null ? "" : label + " " + valueText(scale.low, this.head, chosen.data) + " or worse");
    setText("scale-high", scale.high === null ? "nothing to compare yet" : valueText(scale.high, this.head, chosen.data));
  }

  // -- by keyboard
  at(row, column) { return this.cells.find((cell) => cell.row === row && cell.column === column); }
  start() {
    const row = Math.floor(this.head ? this.head.grids.length / 2 : 0);
    return this.toOptimum(row);
  }
  toOptimum(row) {
    if (!this.head) return null;
    const grid = this.head.grids[row], best = this.optimum(row);
    return [row, best ? Math.max(0, grid.rates.indexOf(best.rate)) : Math.floor(grid.rates.length / 2)];
  }
  key(event) {
    if (!this.head) return;
    const [row, column] = this.cursor || this.start(), grids = this.head.grids;
    const beside = (next) => {
      if (next < 0 || next >= grids.length) return [row, column];
      const rate = grids[row].rates[column];
      const away = grids[next].rates.map((other) => Math.abs(log2(other / rate)));
      return [next, away.indexOf(Math.min(...away))];
    };
    const moves = {
      ArrowUp: () => [row, Math.min(grids[row].rates.length - 1, column + 1)], ArrowDown: () => [row, Math.max(0, column - 1)],
      ArrowLeft: () => beside(row - 1), ArrowRight: () => beside(row + 1), o: () => this.toOptimum(row), O: () => this.toOptimum(row),
    };
    if (moves[event.key]) { event.preventDefault(); this.mark(moves[event.key]()); }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.open(); }
  }
  mark(cursor) {
    if (!cursor || !plotly) return;
    const cell = this.at(cursor[0], cursor[1]);
    if (!cell) { this.cursor = null; return; }
    this.cursor = cursor;
    this.say(cell);
    const layout = this.place._fullLayout;  // a ring above the figure: to draw thousands of cells again would take too long
    if (!layout) return;
    if (!this.ring) this.ring = element("div", {class: "ring"});
    if (!this.ring.isConnected) this.place.append(this.ring);
    this.ring.style.width = this.ring.style.height = this.ringSize + "px";
    this.ring.style.left = layout._size.l + layout.xaxis.l2p(cell.x) - this.ringSize / 2 + "px";
    this.ring.style.top = layout._size.t + layout.yaxis.l2p(cell.y) - this.ringSize / 2 + "px";
    this.ring.hidden = false;
  }
  hideCursor() { if (this.ring) this.ring.hidden = true; }
  say(cell) { this.here.replaceChildren(...this.words(cell).flatMap((line, k) => k ? ["; ", ...formula(line)] : formula(line))); }
  open() { if (this.cursor) openCell(this.store, this.head.id, this.cursor[0], this.cursor[1]); }
}
function nearest(values) {
  const sorted = [...values].sort((a, b) => a - b);
  let least = 1;
  for (let k = 1; k < sorted.length; k++) if (sorted[k] > sorted[k - 1]) least = Math.min(least, sorted[k] - sorted[k - 1]);
  return least;
}
function wrapped(text) {
  return text.replace("; 95 %", "<br>95 %");
}
function axis(title) {
  return {title: {text: plotted(title), standoff: 6}, gridcolor: GRID, linecolor: "#9aa5b1", showline: true, zeroline: false, ticks: "outside", tickcolor: "#9aa5b1", fixedrange: true};
}
function ticks(pairs, most) {
  const kept = pairs.filter((_, k) => k % Math.max(1, Math.ceil(pairs.length / most)) === 0);
  return {tickmode: "array", tickvals: kept.map((p) => p[0]), ticktext: kept.map((p) => p[1])};
}
function octaveTicks([low, high]) {
  const found = [], names = chosen.rate === "temperature" ? look.powers : look.rates;
  for (let k = Math.ceil(low); k <= high; k++) found.push([k, names[k] || "2^" + k]);
  return found;
}
function rateTitle() {
  if (state.map && !state.map.has_temperature) return chosen.rate === "temperature" ? "learning rate over batch size ε / B" : "learning rate ε";
  return {effective: "effective learning rate ε_eff", bare: "learning rate ε", temperature: "temperature T = ε_eff / B"}[chosen.rate];
}

const maps = [new CellMap("map", "here", 0), new CellMap("other-map", "other-here", 1)];

async function drawMaps() {
  if (!state || !state.map || !plotly) return;
  const laws = state.findings.laws || {};
  const other = state.other && state.other.map ? state.other : null;
  const otherLaws = other && other.findings.laws ? other.findings.laws : {};
  await maps[0].draw(state.map, laws[state.map.id], other ? other.map.grids : null);
  if (other) await maps[1].draw(other.map, otherLaws[other.map.id], null);
}

// -- one cell -------------------------------------------------------------------------------------------------------

let opened = null;
async function openCell(store, map, row, column, again) {
  let cell = null;
  try { cell = await getCell(store, map, row, column); } catch (error) { tellProblem(error.message); return; }
  if (!cell) return;
  opened = {store, map, row, column, cell};
  by("cell-title").replaceChildren(...formula(cell.title + ": " + STATES[cell.state].words));
  fill("cell-setting", cell.setting.flatMap(([name, value], k) => [(k ? " · " : "") , ...formula(name), " = " + value]));
  setText("cell-metric", cell.metric);
  const scale = cell.percent ? 100 : 1, digits = (value, factor) => value === null ? "–" : cell.percent && factor === 100 ? (100 * value).toFixed(2) : String(Number(value.toPrecision(4)));
  const isNoted = cell.seeds.some((s) => s.note);
  const heads = ["seed", "role", "state", "test " + cell.metric + (cell.percent ? " (%)" : ""), "test loss", "training loss + L2", "best " + cell.num_kept, ...(isNoted ? ["note"] : [])];
  const rows = cell.seeds.map((s) => element("tr", {},
    element("td", {}, String(s.seed)), element("td", {}, s.role), element("td", {}, STATES[s.state] ? STATES[s.state].words : s.state),
    element("td", {}, digits(s.test_metric, scale)), element("td", {}, digits(s.test_loss, 1)), element("td", {}, digits(s.train, 1)),
    element("td", {}, s.is_kept ? "✓" : ""), isNoted ? element("td", {class: "words"}, s.note) : null));
  by("seeds").replaceChildren(element("thead", {}, element("tr", {}, ...heads.map((h) => element("th", {scope: "col"}, h)))), element("tbody", {}, ...rows));
  if (!again && !by("cell").open) by("cell").showModal();
  drawCurves();
}
function drawCurves() {
  const {cell} = opened, quantity = document.querySelector("input[name=curve]:checked").value;
  const scale = quantity === "test_metric" && cell.percent ? 100 : 1;
  const values = (list) => list.map((value) => value === null ? null : scale * value);
  const traces = [];
  for (const seed of cell.seeds) {
    if (!seed.steps.length) continue;
    traces.push({type: "scatter", mode: "lines", x: seed.steps, y: values(quantity === "test_metric" ? seed.curve_metric : seed.curve_loss), name: "seed " + seed.seed, line: {color: seed.state === "running" ? "#0072b2" : "#9aa5b1", width: 1, dash: seed.state === "running" ? "dash" : "solid"}, hovertemplate: "seed " + seed.seed + (seed.state === "running" ? ", in training" : "") + "<br>update %{x}: %{y:.4g}<extra></extra>"});
  }
  const mean = cell.mean[quantity][chosen.runs === "best" && cell.mean[quantity].best.steps.length ? "best" : "all"];
  const which = mean === cell.mean[quantity].best ? "best " + cell.num_kept : "all";
  if (mean.steps.length) {
    const text = mean.n.map((n) => "n = " + n);
    traces.push({type: "scatter", mode: "lines", x: mean.steps, y: values(mean.low), line: {width: 0}, hoverinfo: "skip"});
    traces.push({type: "scatter", mode: "lines", x: mean.steps, y: values(mean.high), fill: "tonexty", fillcolor: "rgba(213,94,0,0.18)", line: {width: 0}, hoverinfo: "skip"});
    traces.push({type: "scatter", mode: "lines+markers", x: mean.steps, y: values(mean.mean), text, line: {color: "#d55e00", width: 2.5}, marker: {size: 5}, hovertemplate: "mean of %{text}<br>update %{x}: %{y:.4g}<extra></extra>"});
  }
  const least = Math.min(...mean.n), most = Math.max(...mean.n);
  const n = mean.n.length ? (least === most ? "n = " + most : "n = " + least + " to " + most) : "n = 0";
  const unfinished = cell.seeds.filter((s) => s.state === "running").length;
  setText("curves-note", traces.length ? "Thick: mean of the finished runs (" + which + ", " + n + ") with its 95 % interval; thin: every seed" + (unfinished ? "; dashed: " + unfinished + " in training" : "") + "." : "No learning curves are stored: the sweep evaluates at the end alone, or no run has been evaluated yet.");
  show("curves", traces.length > 0);
  by("curves").setAttribute("aria-label", "Learning curves of " + cell.title + ", " + n);
  if (!traces.length || !plotly) return;
  const label = quantity === "test_metric" ? "test " + cell.metric + (cell.percent ? " (%)" : "") : "test loss";
  plotly.react(by("curves"), traces, {...small(by("curves"), 320), xaxis: {...axis("update"), rangemode: "tozero"}, yaxis: axis(label)}, config);
}
function small(place, height) {
  return {
    width: Math.max(240, place.clientWidth), height, margin: {l: 62, r: 10, t: 10, b: 44}, showlegend: false, dragmode: false, hovermode: "closest",
    font: {family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: INK}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hoverlabel: {bgcolor: "white", font: {color: INK}, align: "left"},
  };
}
for (const input of document.querySelectorAll("input[name=curve]")) input.addEventListener("change", () => opened && drawCurves());
by("cell").addEventListener("click", (event) => { if (event.target === by("cell")) by("cell").close(); });
by("cell").addEventListener("close", () => { if (opened) maps[opened.store].place.focus(); opened = null; });

// -- the rest of the page -------------------------------------------------------------------------------------------

function tellProblem(text) { show("problem", Boolean(text)); setText("problem", text || ""); }

function drawProgress() {
  const counts = state.counts, training = state.training, running = training.is_running ? training.num_running : 0;
  const total = Object.values(counts).reduce((a, b) => a + b, 0);
  const waiting = Math.max(0, counts.missing - running);
  const parts = [["finished", counts.finished], ["diverged", counts.diverged], ["failed", counts.failed], ["running", Math.min(running, counts.missing)], ["missing", waiting]];
  const bar = by("bar");
  bar.replaceChildren(...parts.map(([name, n]) => { const e = element("div", {class: name}); e.style.flexGrow = n; return e; }));
  bar.setAttribute("aria-label", parts.map(([name, n]) => whole(n) + " " + name).join(", ") + " of " + plural(total, "run"));
  const words = {finished: "finished", diverged: "diverged", failed: "failed", running: "in training", missing: "to come, as far as known"};
  fill("counts", parts.filter(([name, n]) => n || name === "finished").map(([name, n]) => element("li", {}, element("b", {}, whole(n)), " " + words[name])));
  const said = [];
  if (training.is_running) {
    said.push("Training now: " + training.round + ", " + plural(training.workers, "worker"));
    if (training.runs_per_minute) said.push(Number(training.runs_per_minute.toPrecision(3)) + " runs per minute");
    if (training.seconds_left !== null) said.push("this round needs about " + duration(training.seconds_left) + " more");
    if (training.price_left !== null) said.push("about " + training.price_left.toFixed(2) + " of cost left in it");
    if (training.told_seconds_ago > 60) said.push("no news for " + duration(training.told_seconds_ago));
  } else if (counts.missing + counts.failed) {
    said.push(training.was_stopped ? "Training was stopped; the same command goes on from here" : "Nobody trains into this store at present");
  } else said.push("Everything that the study calls for has been run");
  if (training.runs_left) said.push("left as far as known: " + plural(training.runs_left, "run") + ", " + compact(training.examples_left) + " examples");
  setText("speed", said.join(" · "));
}
function drawNext() {
  const found = state.next;
  const first = found.length ? found[0].round : 0;
  const items = found.slice(0, 6).map((one) => element("li", {},
    element("b", {}, (one.round === first ? "" : "then, ") + one.stage), ": " + one.where + ", " + one.runs + (one.num_tried ? " (" + one.num_tried + " failed before and are tried again)" : "") + " at ", ...formula(one.symbol + " = " + one.rates), element("br"),
    element("span", {class: "soft small"}, ...formula("Why: " + one.reason + "."))));
  if (found.length > 6) items.push(element("li", {}, "and " + plural(found.length - 6, "more grid")));
  fill("next", items.length ? items : [element("li", {}, "Nothing: every grid has what its results call for.")]);
  show("failures-card", state.failures.length > 0);
  fill("failures", state.failures.map((one) => element("li", {}, element("b", {}, plural(one.num_runs, "run")), " at ", ...formula(one.where), element("br"), element("code", {}, one.message))));
}
function table(id, heads, rows) {
  const head = element("tr", {}, ...heads.map((h) => element("th", {scope: "col"}, ...formula(h))));
  by(id).replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value) => element("td", {}, value))))));
}
function drawTables() {
  const head = state.map;
  show("optima-card", Boolean(head));
  if (!head) return;
  table("optima", ["B", head.symbol + " (interval)", head.ratio, head.test_label + " [95 %]", "n", ""], head.optima);
  setText("optima-note", "Tuned on " + head.tuned_on + "; " + head.seeds + ". The test value is over all runs reported at the optimum. ◂ ▸: the interval touches an end of the learning rates tried; …: runs are missing; !: no stable learning rate.");
  const other = state.other;
  show("difference-card", Boolean(other && state.difference));
  if (other && state.difference) {
    setText("difference-title", "Two stores: " + state.store + " and " + other.store);
    table("difference", ["B", head.symbol + ", first", (other.map || head).symbol + ", second", head.test_label + ", first", "second", "difference [95 %]"], state.difference);
  }
}
function ago(seconds) { return seconds < 5 ? "just now" : duration(seconds) + " ago"; }
function drawFindings() {
  const found = state.findings;
  show("findings-card", true);
  if (!found.computed_at) { setText("computed", "The fits are being computed; they take a few seconds or more."); return; }
  const when = frozen ? new Date(1000 * found.computed_at).toLocaleString("en") : ago(Date.now() / 1000 - found.computed_at);
  setText("computed", "Computed " + when + " from " + plural(found.num_runs, "run") + ", in " + duration(found.seconds) + ".");
  const law = state.map && found.laws[state.map.id];
  fill("laws", law ? law.words.map((text) => element("li", {}, ...formula(text))) : [element("li", {}, "No line through the optima of this map yet: it needs three optima or more.")]);
  fill("advice", found.recommendations.map((text) => element("li", {}, ...formula(text))));
  fill("verdicts", found.verdicts.map((v) => element("li", {}, element("b", {}, v.mark + " " + v.state), ": ", ...formula(v.claim), " (", ...formula(v.evidence), ")", v.remedy ? element("span", {class: "soft small"}, " To decide it, ", ...formula(v.remedy)) : null)));
  drawHistory(state.map && found.history[state.map.id]);
}
function drawHistory(points) {
  const known = (points || []).filter((point) => point.kink !== null);
  show("history", known.length > 1);
  if (known.length < 2 || !plotly) return;
  const x = known.map((p) => p.runs), most = Math.max(...state.map.grids.map((g) => g.batch_size)), line = {width: 0};
  const traces = [
    {type: "scatter", mode: "lines", x, y: known.map((p) => p.low), line, hoverinfo: "skip"},
    {type: "scatter", mode: "lines", x, y: known.map((p) => p.high === null ? most : p.high), line, fill: "tonexty", fillcolor: "rgba(213,94,0,0.18)", hoverinfo: "skip"},
    {type: "scatter", mode: "lines+markers", x, y: known.map((p) => p.kink), line: {color: "#d55e00", width: 2}, hovertemplate: "%{x} runs: kink at B ≈ %{y:.0f}<extra></extra>"},
  ];
  by("history").setAttribute("aria-label", "How the kink and its interval tightened as runs arrived");
  plotly.react(by("history"), traces, {...small(by("history"), 230), xaxis: axis("runs"), yaxis: {...axis("batch size at the kink"), type: "log", dtick: Math.log10(2), tickformat: "~g"}}, config);
}
function drawHead() {
  document.title = state.is_read ? state.study + " · Isotherm" : "Isotherm";
  setText("name", state.is_read ? state.study : "Reading the store …");
  setText("question", state.question || "");
  tellProblem([state.problem, state.other && state.other.problem].filter(Boolean).join(" "));
  show("progress", state.is_read); show("map-section", Boolean(state.map));
  setText("foot", "Store: " + state.store + (state.other ? ", compared with " + state.other.store : "") + ". This page only reads.");
  if (!state.map) return;
  const options = by("maps");
  const names = JSON.stringify(state.maps.map((one) => [one.id, one.title]));
  if (options.dataset.names !== names) {
    options.dataset.names = names;
    options.replaceChildren(...state.maps.map((one) => element("option", {value: one.id}, one.title)));
  }
  options.value = state.map.id;
  show("choose", state.maps.length > 1);
  setText("best-k", "best " + state.map.num_kept + " of " + state.map.num_seeds);
  setText("map-title", state.map.title + (state.other ? " · " + state.store : ""));
  const other = Boolean(state.other && state.other.map);
  show("other-card", other);
  document.querySelector(".columns").classList.toggle("compared", other);
  if (other) setText("other-title", state.other.map.title + " · " + state.other.store);
}
async function drawAll() {
  drawHead();
  if (!state.is_read) return;
  drawProgress(); drawNext(); drawTables();
  if (!plotly) plotly = await loadPlotly();
  await drawMaps();
  drawFindings();
  document.documentElement.dataset.version = state.version;
  if (opened && by("cell").open && !frozen) openCell(opened.store, opened.map, opened.row, opened.column, true);
}

// -- following ------------------------------------------------------------------------------------------------------

let isBusy = false, isStale = false;
async function refresh() {
  if (isBusy) { isStale = true; return; }
  isBusy = true;
  const start = performance.now();
  try {
    do {
      isStale = false;
      state = await getState(chosen.map);
      if (state.map && !chosen.map && state.version > 1) chosen.map = state.map.id;  // and stays there
      await drawAll();
    } while (isStale && performance.now() - start < 200);
  } catch (error) { tellProblem(error.message); }
  // No more than half of the time goes into drawing.
  window.setTimeout(() => { isBusy = false; if (isStale) refresh(); }, Math.max(300, performance.now() - start));
}
function follow() {
  const events = new EventSource("events");
  events.addEventListener("version", () => { setText("pulse", "following the store"); if (document.hidden) isStale = true; else refresh(); });
  events.onerror = () => setText("pulse", "the server does not answer; trying again");
  document.addEventListener("visibilitychange", () => { if (!document.hidden && isStale) refresh(); });
  window.addEventListener("pagehide", () => events.close());
}
let resizing = 0;
window.addEventListener("resize", () => { window.clearTimeout(resizing); resizing = window.setTimeout(() => { if (state && state.is_read) { drawMaps(); drawFindings(); if (opened) drawCurves(); } }, 150); });

async function begin() {
  if (frozenText) {
    await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));  // plotly comes after this script
    frozen = await unpack(JSON.parse(frozenText.textContent)); setText("pulse", "");
    await refresh();
    return;
  }
  follow();
}
begin();
})();
