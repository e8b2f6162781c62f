// The interactive view of a run: the tree with its controls, and the evidence of the selected node.

import { el, fill, sentences } from "./dom.js";
import { durationText, numberText, ratioText, shortened, timeText } from "./format.js";
import { chartBook } from "./charts.js";
import { childrenOf } from "./layout.js";
import { times, momentAt } from "./growth.js";
import { KINDS, NUMBERS, OUTCOMES, kindsAmong, knownNumbers, outcomeOf } from "./metrics.js";
import { drawTree, kindColours, markSelected, matches, SCALE, sortedValues } from "./tree.js";
import { nodePanel } from "./details.js";
import { hostTheme, palette } from "./theme.js";

let views = 0;

/**
 * Builds the view of a run in an element.
 *
 * `source` has `part(name)`, which promises a part of the run, and `details(node)`, the evidence of a node;
 * `onSelect` gets the number of the selected node.
 * Returns the document, `select`, the state, and the `charts` of the page, which follow its theme.
 */
export async function buildView(root, plotly, source, onSelect) {
  const doc = await source.part("document");
  const view = { doc, children: childrenOf(doc.nodes), times: times(doc), counters: null };
  view.counterMetric = (name) => ({ title: name, of: (node) => view.counters?.[name]?.[node.id] ?? null });
  const state = {
    selected: null,
    collapsed: new Set(),
    outcomes: new Set(),
    text: "",
    colour: doc.nodes.some((node) => node.speedup) ? "speedup" : "outcome",
    layout: "tree",
    step: doc.growth.length,
    tab: "Overview",
  };
  const number = views++;
  const plot = el("div", { class: "plot" });
  const tip = el("div", { class: "tip", hidden: true });
  const live = el("p", { class: "visually-hidden", "aria-live": "polite" });
  const details = el("aside", { class: "details", "aria-label": "Selected node" }, el("p", { class: "muted" }, "Select a node."));
  const legend = el("div", { class: "legend" });
  const frame = el(
    "div",
    { class: "plot-frame", tabindex: "0", role: "application", "aria-label": "Search tree. Arrow keys go to parent, child and siblings, Home to the start, End to the best, space collapses.", keydown: (event) => onKey(event) },
    plot,
    tip,
  );
  let drawn = null;
  let colours = palette(root);
  const charts = chartBook(colours);

  const redraw = () => {
    drawn = drawTree(plotly, plot, view, state, colours);
    fill(legend, colourLegend(view, state, colours));
  };
  let waiting = false;
  const soon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      redraw();
    });
  };

  const select = async (id) => {
    if (!doc.nodes[id]) return;
    const isMarked = state.selected === id;
    state.selected = id;
    let opened = false;
    for (let above = doc.nodes[id].parent; above !== null; above = doc.nodes[above].parent) opened = state.collapsed.delete(above) || opened;
    if (opened) soon();
    else if (!isMarked) markSelected(plotly, plot, drawn.place, id, colours);
    live.textContent = `Node ${id}: ${doc.nodes[id].title}, ${outcomeOf(doc.nodes[id])} ${ratioText(doc.nodes[id].speedup, doc.headline.numbers)}`;
    onSelect?.(id);
    await showDetails(id);
  };

  const showDetails = async (id) => {
    const node = doc.nodes[id];
    try {
      const [found, parent, baseline] = await Promise.all([
        source.details(id),
        node.parent === null ? null : source.details(node.parent),
        source.details(0),
      ]);
      if (state.selected !== id) return;
      const context = { node, details: found, parent, baseline, nodes: doc.nodes, best: doc.headline.best, source: doc.headline.numbers, plotly, colours, panel: `mctskernel-panel-${number}` };
      fill(details, nodePanel(context, state.tab, (tab) => (state.tab = tab), (other) => select(other)));
    } catch (error) {
      fill(details, el("p", { class: "message" }, `The details of node ${id} can't be shown: ${error.message}`));
    }
  };

  const onKey = (event) => {
    if (event.target !== frame) return;
    const next = neighbour(view, state, drawn, event.key);
    if (next !== undefined && next !== null) {
      event.preventDefault();
      select(next);
    } else if ((event.key === " " || event.key === "Enter") && state.selected !== null) {
      event.preventDefault();
      toggle(state.selected);
    }
  };

  const toggle = (id) => {
    if (!view.children[id].length) return;
    if (!state.collapsed.delete(id)) state.collapsed.add(id);
    soon();
  };

  fill(root, controls(view, state, source, soon, toggle), el("div", { class: "split" }, el("div", { class: "tree" }, legend, frame, scrubber(view, state, soon)), details), live);
  state.selected = doc.headline.best ?? (doc.nodes.length ? 0 : null);
  redraw();
  root.dataset.drawn = "true";
  listen(plot, tip, frame, doc, select);
  followTheme(root, () => {
    colours = palette(root);
    redraw();
    charts.recolour(colours);
    if (state.selected !== null) showDetails(state.selected);
  });
  if (state.selected !== null) await select(state.selected);
  return { doc, select, charts, view, state };
}

function controls(view, state, source, soon, toggle) {
  const numbers = knownNumbers(view.doc.nodes).map(([name, metric]) => el("option", { value: name }, metric.title));
  const kinds = Object.entries(KINDS).map(([name, metric]) => el("option", { value: name }, metric.title));
  const counters = view.doc.counters.map((name) => el("option", { value: name }, name));
  const colour = el(
    "select",
    {
      change: async (event) => {
        state.colour = event.target.value;
        if (!NUMBERS[state.colour] && !KINDS[state.colour]) view.counters ??= await source.part("counters");
        soon();
      },
    },
    el("optgroup", { label: "Numbers" }, numbers),
    el("optgroup", { label: "Kinds" }, kinds),
    counters.length ? el("optgroup", { label: "Counters" }, counters) : null,
  );
  colour.value = state.colour;
  const layout = el("select", { change: (event) => { state.layout = event.target.value; soon(); } }, el("option", { value: "tree" }, "tree"), el("option", { value: "time" }, "speed-up by node"));
  const search = el("input", { type: "search", placeholder: "title, category, number…", input: (event) => { state.text = event.target.value; soon(); } });
  const chips = kindsAmong(view.doc.nodes, KINDS.outcome).map(([outcome, count]) => {
    const chip = el("button", { type: "button", class: "chip", "aria-pressed": "false", click: () => {
      if (!state.outcomes.delete(outcome)) state.outcomes.add(outcome);
      chip.setAttribute("aria-pressed", String(state.outcomes.has(outcome)));
      soon();
    } }, `${OUTCOMES[outcome]?.glyph ?? "●"} ${outcome} ${count}`);
    return chip;
  });
  return el(
    "div",
    { class: "controls", role: "group", "aria-label": "How the tree is drawn" },
    el("label", {}, el("span", { class: "label" }, "colour"), colour),
    el("label", {}, el("span", { class: "label" }, "layout"), layout),
    el("label", {}, el("span", { class: "label" }, "find"), search),
    el("button", { type: "button", click: () => state.selected !== null && toggle(state.selected) }, "collapse / expand"),
    el("button", { type: "button", click: () => { collapseDull(view, state); soon(); } }, "fold all but the best path"),
    el("button", { type: "button", click: () => { state.collapsed.clear(); soon(); } }, "expand all"),
    el("span", { class: "chips", role: "group", "aria-label": "Outcomes shown" }, chips),
  );
}

/** Collapses every node that isn't on the best path. */
function collapseDull(view, state) {
  const path = new Set(view.doc.best_path);
  state.collapsed.clear();
  view.doc.nodes.forEach((node) => {
    if (!path.has(node.id) && view.children[node.id].length) state.collapsed.add(node.id);
  });
}

function scrubber(view, state, soon) {
  const steps = view.doc.growth;
  const said = el("output", { class: "moment" });
  const say = () => {
    const moment = momentAt(view.doc, state.step);
    said.textContent = moment ? `${moment.evaluations} evaluation${moment.evaluations === 1 ? "" : "s"}, ${durationText(moment.seconds)}, best ${ratioText(moment.best_speedup, view.doc.headline.numbers)}` : "nothing yet";
  };
  const range = el("input", { type: "range", min: "0", max: String(steps.length), value: String(steps.length), "aria-label": "Growth of the tree", input: (event) => { state.step = Number(event.target.value); say(); soon(); } });
  let timer = null;
  const play = el("button", { type: "button", class: "play", "aria-label": "Replay the growth", click: () => (timer === null ? start() : stop()) }, "▶");
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶";
  };
  const start = () => {
    if (state.step >= steps.length) state.step = 0;
    play.textContent = "⏸";
    const stride = Math.max(1, Math.round(steps.length / 150));
    timer = setInterval(() => {
      state.step = Math.min(steps.length, state.step + stride);
      range.value = String(state.step);
      say();
      soon();
      if (state.step >= steps.length || !range.isConnected) stop();
    }, 100);
  };
  say();
  return el("div", { class: "scrubber" }, play, range, said);
}

function colourLegend(view, state, colours) {
  const kind = KINDS[state.colour];
  if (kind) {
    const of = [...kindColours(view.doc.nodes, kind, colours)];
    return of.slice(0, 10).map(([name, colour]) => el("span", { class: "key" }, el("span", { class: "swatch", style: `--colour: ${colour}` }), name));
  }
  const metric = NUMBERS[state.colour] ?? view.counterMetric(state.colour);
  const values = sortedValues(metric, view.doc.nodes);
  if (!values.length) return [el("span", { class: "key" }, `${metric.title}: unknown`)];
  const found = [values[0], values.at(-1)];
  const median = values[Math.floor(values.length / 2)];
  const stops = SCALE.map((part) => `rgb(${part.join(" ")})`).join(", ");
  const text = state.colour === "seconds" ? timeText : ["speedup", "gain"].includes(state.colour) ? (value) => ratioText(value, view.doc.headline.numbers) : numberText;
  return [el("span", { class: "key" }, metric.title), el("span", { class: "key" }, text(found[0])), el("span", { class: "ramp", style: `--ramp: linear-gradient(90deg, ${stops})` }), el("span", { class: "key" }, text(found[1])), el("span", { class: "key" }, `by rank, median ${text(median)}`)];
}

/** The node that a key leads to from the selected one. */
function neighbour(view, state, drawn, key) {
  const { nodes } = view.doc;
  if (!nodes.length) return undefined;
  if (key === "Home") return 0;
  if (key === "End") return view.doc.headline.best ?? nodes.length - 1;
  const from = state.selected ?? 0;
  const shown = drawn.shown.filter((node) => node.id === from || matches(state, node));
  if (key === "ArrowUp") return nodes[from].parent;
  if (key === "ArrowDown") return shown.find((node) => node.parent === from)?.id;
  if (key !== "ArrowLeft" && key !== "ArrowRight") return undefined;
  const depth = nodes[from].depth;
  const level = shown.filter((node) => node.depth === depth).sort((a, b) => drawn.place.x[a.id] - drawn.place.x[b.id]);
  return level[level.findIndex((node) => node.id === from) + (key === "ArrowRight" ? 1 : -1)]?.id;
}

function listen(plot, tip, frame, doc, select) {
  const nodeOf = (event) => event.points.find((point) => point.customdata !== undefined)?.customdata;
  plot.on("plotly_click", (event) => {
    const id = nodeOf(event);
    if (id !== undefined) select(id);
  });
  plot.on("plotly_hover", (event) => {
    const id = nodeOf(event);
    if (id === undefined) return;
    const node = doc.nodes[id];
    const { numbers } = doc.headline;
    const facts = [outcomeOf(node), timeText(node.seconds), node.gain ? `${ratioText(node.gain, numbers)} over its parent` : "", ratioText(node.speedup, numbers), node.moved, node.bottleneck].filter(Boolean);
    fill(tip, el("strong", {}, `node ${id}`), ` ${shortened(node.title, 120)}`, el("br"), facts.join(" · "), node.message ? [el("br"), shortened(node.message, 160)] : []);
    const box = frame.getBoundingClientRect();
    const { clientX, clientY } = event.event;
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(clientX - box.left + 14, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(0, Math.min(clientY - box.top + 14, box.height - tip.offsetHeight - 4))}px`;
  });
  plot.on("plotly_unhover", () => (tip.hidden = true));
}

/** Sets an element's theme to the host's, now and whenever that changes, unless `data-theme-chosen` says otherwise. */
export function followTheme(root, changed) {
  const themed = root.closest(".mctskernel");
  const follow = () => {
    const theme = themed.dataset.themeChosen ?? hostTheme();
    if (themed.dataset.theme === theme) return;
    themed.dataset.theme = theme;
    changed();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
  new MutationObserver(follow).observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  new MutationObserver(follow).observe(themed, { attributes: true, attributeFilter: ["data-theme-chosen"] });
}
