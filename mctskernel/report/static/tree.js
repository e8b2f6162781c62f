// The drawing of the tree: plotly's scatter, with this program's colours, shapes and sizes.

import { chartLayout, CHART, logTicks } from "./theme.js";
import { OUTCOMES, NUMBERS, KINDS, outcomeOf, kindsAmong } from "./metrics.js";
import { tidyTree, overTime } from "./layout.js";
import { visitsAt } from "./growth.js";

/** Nodes up to which each is a shape of its own, which looks best; more are pixels, which are drawn sooner. */
const MOST_SHAPES = 3000;

const LAYOUTS = { tree: tidyTree, time: overTime };

/** Draws a state of the view into an element. Returns the positions of the nodes. */
export function drawTree(plotly, element, view, state, colours) {
  const { nodes } = view.doc;
  const place = LAYOUTS[state.layout](nodes, view.children, state.collapsed);
  const shown = nodes.filter((node) => isShown(view, state, node) && !Number.isNaN(place.x[node.id]));
  const matching = new Set(shown.filter((node) => matches(state, node)).map((node) => node.id));
  const best = new Set(view.doc.best_path);
  const kind = nodes.length > MOST_SHAPES ? "scattergl" : "scatter";
  const traces = [
    edges(kind, shown, nodes, place, (node) => !(best.has(node.id) && best.has(node.parent)), { color: colours.faint, width: shown.length > 400 ? 0.5 : 1 }),
    edges(kind, shown, nodes, place, (node) => best.has(node.id) && best.has(node.parent), { color: colours.best, width: 3 }),
    markers(kind, view, state, shown, place, matching, colours),
  ];
  const moved = shown.filter((node) => best.has(node.id) && best.has(node.parent) && node.moved);
  const annotations = state.layout === "tree" ? edgeLabels(moved, place, colours) : [];
  plotly.react(element, traces, { ...treeLayout(state, place, shown, colours), annotations }, { ...CHART, scrollZoom: true });
  return { place, shown };
}

/** Whether a node exists at the step that the scrubber is at. */
export function isShown(view, state, node) {
  return view.times.submitted[node.id] <= state.step;
}

/** Whether a node is what the filter asks for. */
export function matches(state, node) {
  if (state.outcomes.size && !state.outcomes.has(outcomeOf(node))) return false;
  if (!state.text) return true;
  const text = `${node.id} ${node.title} ${node.category} ${node.proposer} ${node.bottleneck} ${node.message}`;
  return text.toLowerCase().includes(state.text.toLowerCase());
}

/** The colour of each kind of the metric that the state names. */
export function kindColours(nodes, metric, colours) {
  const found = kindsAmong(nodes, metric).map(([kind], at) => [kind, colours.categories[at % colours.categories.length]]);
  return new Map(found);
}

function edges(type, shown, nodes, place, chosen, line) {
  const x = [];
  const y = [];
  for (const node of shown) {
    if (node.parent === null || !chosen(node)) continue;
    x.push(place.x[node.parent], place.x[node.id], null);
    y.push(place.y[node.parent], place.y[node.id], null);
  }
  return { type, mode: "lines", x, y, line, hoverinfo: "skip" };
}

/** What each edit of the best path changed most, beside its edge. */
function edgeLabels(steps, place, colours) {
  const middle = (axis, node) => (place[axis][node.id] + place[axis][node.parent]) / 2;
  const centre = (Math.min(...place.x.filter(Number.isFinite)) + Math.max(...place.x.filter(Number.isFinite))) / 2;
  return steps.map((node) => {
    const x = middle("x", node);
    const side = x > centre ? -1 : 1;
    return { x, y: middle("y", node), text: node.moved.replace(" to ", " → "), showarrow: false, xanchor: side > 0 ? "left" : "right", xshift: 24 * side, font: { size: 11, color: colours.best }, bgcolor: colours.surface, borderpad: 1 };
  });
}

function markers(type, view, state, shown, place, matching, colours) {
  const visits = visitsAt(view.doc, view.times.evaluated, state.step);
  const scale = shown.length > 400 ? 0.7 : 1;
  const came = (node) => view.times.evaluated[node.id] <= state.step;
  return {
    type,
    mode: "markers",
    x: shown.map((node) => place.x[node.id]),
    y: shown.map((node) => place.y[node.id]),
    customdata: shown.map((node) => node.id),
    hoverinfo: "none",
    marker: {
      symbol: alike(shown.map((node) => OUTCOMES[came(node) ? outcomeOf(node) : "in flight"]?.symbol ?? "circle")),
      size: shown.map((node) => scale * (8 + 7 * Math.log10(Math.max(1, visits[node.id])))),
      opacity: alike(shown.map((node) => (matching.has(node.id) ? 1 : 0.12))),
      line: {
        width: alike(shown.map((node) => (state.collapsed.has(node.id) ? 2 * scale : 1))),
        color: alike(shown.map((node) => (state.collapsed.has(node.id) ? colours.text : colours.surface))),
      },
      ...colouring(view, state, shown, came, colours),
    },
  };
}

/** One value where all are the same: plotly reads a colour or a symbol of each point anew. */
function alike(values) {
  return values.length && values.every((value) => value === values[0]) ? values[0] : values;
}

function colouring(view, state, shown, came, colours) {
  const kind = KINDS[state.colour];
  if (kind) {
    const of = kindColours(view.doc.nodes, kind, colours);
    return { color: shown.map((node) => (came(node) ? of.get(kind.of(node)) : colours.muted)) };
  }
  const metric = NUMBERS[state.colour] ?? view.counterMetric(state.colour);
  const values = sortedValues(metric, view.doc.nodes);
  // A node without the number is grey: plotly's colour scales know no such thing, so the colours are made here.
  return { color: shown.map((node) => (came(node) && isNumber(metric.of(node)) ? mapped(rank(values, metric.of(node))) : colours.muted)) };
}

/** The values of a number among nodes in their order. */
export function sortedValues(metric, nodes) {
  return Float64Array.from(nodes.map((node) => metric.of(node)).filter(isNumber)).sort();
}

function isNumber(value) {
  return value !== null && value !== undefined;
}

/** The share of the values below one of them: ranks distinguish kernels that are all near the best. */
function rank(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return values.length > 1 ? low / (values.length - 1) : 1;
}

// Five points of Cividis (Nuñez, Anderton and Renslow 2018), which the colour-blind and both themes can read.
export const SCALE = [[34, 72, 138], [86, 98, 120], [139, 136, 120], [197, 175, 92], [254, 222, 60]];

function mapped(fraction) {
  const at = Math.min(Math.max(fraction, 0), 1) * (SCALE.length - 1);
  const [low, high] = [SCALE[Math.floor(at)], SCALE[Math.ceil(at)]];
  const mix = low.map((part, channel) => Math.round(part + (high[channel] - part) * (at - Math.floor(at))));
  return `rgb(${mix.join(",")})`;
}

/** Moves the ring to the selected node: a shape, since drawing a trace again would draw all of them. */
export function markSelected(plotly, element, place, selected, colours) {
  return plotly.relayout(element, { shapes: ring(place, selected, colours) });
}

function ring(place, selected, colours) {
  if (selected === null || Number.isNaN(place.x[selected])) return [];
  const size = { xsizemode: "pixel", ysizemode: "pixel", x0: -13, x1: 13, y0: -13, y1: 13 };
  return [{ type: "circle", xanchor: place.x[selected], yanchor: place.y[selected], ...size, line: { color: colours.accent, width: 3 } }];
}

function treeLayout(state, place, shown, colours) {
  const bare = { showgrid: false, zeroline: false, showline: false, showticklabels: false, ticks: "" };
  const tree = state.layout === "tree";
  const deepest = shown.reduce((deep, node) => Math.min(deep, place.y[node.id]), 0);
  return chartLayout(colours, {
    shapes: ring(place, state.selected, colours),
    uirevision: `${state.layout} ${[...state.collapsed].join()}`,
    // A finger scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "pan",
    margin: tree ? { l: 8, r: 8, t: 8, b: 8 } : { l: 56, r: 12, t: 12, b: 44 },
    xaxis: tree ? bare : { title: { text: "node, in order of creation" } },
    yaxis: tree
      ? { ...bare, range: [deepest - 0.6, 0.6] }
      : { title: { text: "speed-up over the start" }, ...speedupTicks(place, shown) },
  });
}

/** Ticks of the axis of logarithms that `overTime` places nodes by. */
function speedupTicks(place, shown) {
  const values = shown.map((node) => 10 ** place.y[node.id]);
  const ticks = logTicks(Math.min(...values, 1), Math.max(...values, 1.3), (value) => `${value}x`);
  return { ...ticks, tickvals: ticks.tickvals.map(Math.log10) };
}
