// The sections of a report besides the tree: headline, best path, progress, roofline, failures, edits, environment.

import { counterName, el, sentences, table } from "./dom.js";
import { durationText, numberText, ratioText, timeText } from "./format.js";
import { chartLayout, CHART, logTicks } from "./theme.js";

/** The headline: the result of the search and of its final validation. */
export function headline(doc) {
  const found = doc.headline;
  const counts = Object.entries(found.outcomes).map(([outcome, count]) => `${count} ${outcome}`).join(", ");
  const last = doc.progress.at(-1);
  const spent = last ? [durationText(last.seconds), last.dollars ? `$${last.dollars.toFixed(2)}` : ""].filter(Boolean).join(", ") : "";
  return el(
    "header",
    { class: "headline" },
    el("p", { class: "kicker" }, "mctskernel · ", found.device),
    el("h1", {}, found.task, ...found.caveats.map((each) => el("span", { class: "badge bad", title: each }, each.split(":")[0]))),
    el(
      "div",
      { class: "figures" },
      found.speedup === null ? null : figure(ratioText(found.speedup, found.numbers), `over ${found.start}, ${found.numbers}`, "best"),
      found.over_pytorch ? figure(...found.over_pytorch.split(/ (.*)/, 2)) : null,
      found.time ? figure(found.time, `from ${found.starting_time}`) : null,
      figure(String(found.evaluations), `evaluation${found.evaluations === 1 ? "" : "s"}: ${counts || "none yet"}`),
      spent ? figure(spent, "spent") : null,
    ),
    el("p", { class: "state" }, found.state),
    sentences(found.sentences, "notes"),
  );
}

function figure(value, label, kind) {
  return el("div", { class: `figure ${kind ?? ""}` }, el("strong", {}, value), el("span", {}, label));
}

/** The best path, an edit a step. */
export function bestPath(story, numbers, go) {
  const steps = story.steps.map((step) =>
    el(
      "li",
      {},
      el("div", { class: "step" }, el("button", { type: "button", class: "link", click: () => go(step.node) }, `node ${step.node}`), " ", el("strong", {}, step.title), stepFigures(step, numbers)),
      step.moved ? el("p", { class: "moved" }, step.moved) : null,
      step.effects.length || step.evidence.length || step.why
        ? el("details", {}, el("summary", {}, "Evidence"), step.why ? el("p", {}, step.why) : null, sentences(step.effects), sentences(step.evidence))
        : null,
    ),
  );
  return steps.length ? el("ol", { class: "story" }, steps) : el("p", {}, "There is no path: no kernel is valid yet.");
}

function stepFigures(step, numbers) {
  if (step.gain === null) return el("span", { class: "gain" }, step.time);
  return el("span", { class: "gain" }, el("b", {}, ratioText(step.gain, numbers)), ` ${step.time}, ${ratioText(step.speedup, numbers)} in total`);
}

const AXES = {
  evaluations: { title: "evaluations", of: (moment) => moment.evaluations },
  seconds: { title: "seconds", of: (moment) => moment.seconds },
  dollars: { title: "US dollars", of: (moment) => moment.dollars },
};

/** The best so far against what was spent; `charts` draws it when it comes into sight. */
export function progressChart(plotly, doc, go, charts) {
  const chart = el("div", { class: "chart", role: "img", "aria-label": progressText(doc) });
  let axis = "evaluations";
  const draw = (colours) => {
    const valid = doc.progress.filter((moment) => moment.speedup > 0);
    const best = doc.progress.filter((moment) => moment.best_speedup > 0);
    const of = AXES[axis].of;
    const speedups = valid.map((moment) => moment.speedup);
    const ticks = valid.length ? logTicks(Math.min(...speedups), Math.max(...speedups), (value) => `${value}x`) : {};
    const dots = { type: "scatter", mode: "markers", x: valid.map(of), y: valid.map((moment) => moment.speedup), customdata: valid.map((moment) => moment.node), marker: { size: 5, color: colours.muted }, hovertemplate: "node %{customdata}: %{y:.2f}x<extra></extra>" };
    const line = { type: "scatter", mode: "lines", x: best.map(of), y: best.map((moment) => moment.best_speedup), customdata: best.map((moment) => moment.best), line: { shape: "hv", width: 3, color: colours.best }, hovertemplate: "best: node %{customdata}, %{y:.2f}x<extra></extra>" };
    plotly.react(chart, [dots, line], chartLayout(colours, { height: 320, xaxis: { title: { text: AXES[axis].title }, ...(axis === "evaluations" && doc.progress.length < 12 ? { dtick: 1 } : {}) }, yaxis: { title: { text: "speed-up over the start" }, type: "log", ...ticks } }), CHART).then(() => onClick(chart, go));
  };
  charts.add(chart, draw);
  const known = Object.keys(AXES).filter((name) => name === "evaluations" || doc.progress.some((moment) => moment[name] > 0));
  const select = el("select", { "aria-label": "What the best so far is drawn against", change: (event) => { axis = event.target.value; charts.redraw(chart); } }, known.map((name) => el("option", { value: name }, `against ${AXES[name].title}`)));
  return [el("p", { class: "controls" }, select), chart];
}

function progressText(doc) {
  const last = doc.progress.at(-1);
  return last ? `After ${last.evaluations} evaluations the best speed-up was ${ratioText(last.best_speedup, doc.headline.numbers)}.` : "No evaluation has finished.";
}

/** The roofline with the best path on it; traffic against time where the task doesn't give its operations. */
export function rooflineChart(plotly, doc, go, charts) {
  const found = doc.roofline;
  const chart = el("div", { class: "chart", role: "img", "aria-label": "Roofline of the run" });
  const path = new Map(doc.best_path.map((node, at) => [node, at]));
  const place = found.flops
    ? (point) => [found.flops / point.dram_bytes, found.flops / point.seconds]
    : (point) => [point.dram_bytes, point.seconds];
  const draw = (colours) => {
    const others = found.points.filter((point) => !path.has(point.node));
    const best = found.points.filter((point) => path.has(point.node)).sort((a, b) => path.get(a.node) - path.get(b.node));
    const hover = found.flops ? "node %{customdata}: %{y:.3s}FLOP/s at %{x:.3g} FLOP per byte<extra></extra>" : "node %{customdata}: %{x:.3s}B in %{y:.3s}s<extra></extra>";
    const scatter = (points, more) => ({ type: "scatter", x: points.map((point) => place(point)[0]), y: points.map((point) => place(point)[1]), customdata: points.map((point) => point.node), hovertemplate: hover, ...more });
    const traces = [
      ...ceilings(found, place, colours),
      scatter(others, { mode: "markers", marker: { size: 6, color: colours.muted } }),
      scatter(best, { mode: "lines+markers", marker: { size: 10, color: colours.best }, line: { color: colours.best, width: 2 } }),
    ];
    const titles = found.flops ? ["arithmetic intensity, FLOP per byte of DRAM", "FLOP/s"] : ["bytes moved to and from DRAM", "time"];
    const words = found.flops ? [(value) => String(value), (value) => `${value / 1e12} T`] : [(value) => `${value / 1e6} MB`, (value) => timeText(value)];
    const [xaxis, yaxis] = titles.map((text, at) => {
      const roofs = at && found.flops ? [found.ceilings.fp32_flops_per_second, found.ceilings.tensor_flops_per_second] : [];
      const values = [...found.points.map((point) => place(point)[at]), ...roofs];
      return { type: "log", title: { text }, ...logTicks(Math.min(...values) / 2, Math.max(...values) * 2, words[at]) };
    });
    plotly.react(chart, traces, chartLayout(colours, { height: 360, xaxis, yaxis }), CHART).then(() => onClick(chart, go));
  };
  charts.add(chart, draw);
  const rates = found.ceilings;
  const note = found.flops
    ? `Ceilings of ${found.gpu}: ${numberText(rates.copy_bytes_per_second / 1e9)} GB/s, ${numberText(rates.fp32_flops_per_second / 1e12)} TFLOP/s in fp32, ${numberText(rates.tensor_flops_per_second / 1e12)} on tensor cores. Traffic is counted; operations are those of the plain algorithm.`
    : `The task doesn't give its number of operations, so time is drawn against traffic: below the line of a copy at ${numberText(rates.copy_bytes_per_second / 1e9)} GB/s (${found.gpu}) are only kernels whose data stays in L2.`;
  return [el("p", { class: "muted" }, note), chart];
}

function ceilings(found, place, colours) {
  const points = found.points.map(place);
  const [low, high] = [Math.min(...points.map(([x]) => x)) / 3, Math.max(...points.map(([x]) => x)) * 3];
  const rate = found.ceilings.copy_bytes_per_second;
  const line = { width: 1.5, color: colours.text };
  if (!found.flops) return [{ type: "scatter", mode: "lines", x: [low, high], y: [low / rate, high / rate], line, hoverinfo: "skip" }];
  const roof = (peak, dash, name) => {
    const ridge = peak / rate;
    const xs = [low, Math.min(Math.max(ridge, low), high * 1000), Math.max(high, ridge * 2)];
    return { type: "scatter", mode: "lines+text", x: xs, y: xs.map((x) => Math.min(peak, x * rate)), text: ["", "", name], textposition: "top left", line: { ...line, dash }, hoverinfo: "skip" };
  };
  return [roof(found.ceilings.fp32_flops_per_second, "solid", "fp32"), roof(found.ceilings.tensor_flops_per_second, "dot", "tensor cores")];
}

function onClick(chart, go) {
  chart.removeAllListeners?.("plotly_click");
  chart.on("plotly_click", ({ points }) => points[0].customdata !== undefined && go(points[0].customdata));
}

/** The failures by kind. */
export function failureTable(doc, go) {
  const rows = doc.failures.map((kind) => [
    kind.outcome,
    kind.guard,
    String(kind.count),
    kind.nodes.flatMap((node, at) => [at ? " " : "", el("button", { type: "button", class: "link", click: () => go(node) }, String(node))]),
    kind.message,
  ]);
  return table([["outcome"], ["detected by"], ["count", true], ["nodes"], ["first message"]], rows, "Failures by kind");
}

/** How often each kind of edit made a kernel faster. */
export function editTable(doc) {
  const rows = doc.edits.map((row) => [
    row.category,
    row.proposer,
    String(row.tried),
    String(row.valid),
    String(row.gained),
    String(row.lost),
    ratioText(row.median_gain, doc.headline.numbers),
    ratioText(row.best_gain, doc.headline.numbers),
  ]);
  return table([["category"], ["proposer"], ["tried", true], ["valid", true], ["faster", true], ["slower", true], ["median gain", true], ["best gain", true]], rows, "Edits by category");
}

/** Where and how the run was made. */
export function environmentTable(doc) {
  return table([["what"], ["value"]], Object.entries(doc.environment).map(([name, value]) => [counterName(name), value]), "Environment");
}
