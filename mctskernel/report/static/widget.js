// The host of a notebook: the same view, whose parts Python makes when they are looked at.

import { el } from "./dom.js";
import { inflate, partSource } from "./parts.js";
import { buildView } from "./view.js";
import { hostTheme } from "./theme.js";

function asker(model) {
  const waiting = new Map();
  model.on("msg:custom", (message, buffers) => {
    const { resolve, reject } = waiting.get(message.name) ?? {};
    waiting.delete(message.name);
    if (message.problem) reject?.(new Error(message.problem));
    else resolve?.(buffers[0]);
  });
  return (name) =>
    new Promise((resolve, reject) => {
      waiting.set(name, { resolve, reject });
      model.send({ name });
    });
}

let plotlyLoaded = null;

/** Plotly, evaluated once for all views of a page. It registers itself as a global, as its authors have it. */
function loadPlotly(ask) {
  plotlyLoaded ??= (async () => {
    const text = await inflate(await ask("plotly"));
    // With AMD's define in reach, as in the classic notebook, it would register there instead.
    const wrapped = `const define = undefined, module = undefined, exports = undefined;\n${text}\nexport default globalThis.Plotly;`;
    const address = URL.createObjectURL(new Blob([wrapped], { type: "text/javascript" }));
    try {
      return (await import(address)).default;
    } finally {
      URL.revokeObjectURL(address);
    }
  })();
  return plotlyLoaded;
}

async function render({ model, el: host }) {
  const root = el("div", { class: "mctskernel widget" }, el("p", { class: "muted" }, "Loading…"));
  root.dataset.theme = hostTheme();
  host.append(root);
  const ask = asker(model);
  const source = partSource(ask);
  source.details = (node) => source.part(`detail/${node}`);
  try {
    const holder = el("div", { class: "view" });
    const [plotly] = await Promise.all([loadPlotly(ask), source.part("document")]);
    root.replaceChildren(holder);
    const view = await buildView(holder, plotly, source, (node) => {
      model.set("selected", node);
      model.save_changes();
    });
    model.on("change:selected", () => model.get("selected") !== view.state.selected && view.select(model.get("selected")));
    root.dataset.ready = "true";
  } catch (error) {
    root.replaceChildren(el("p", { class: "message" }, `The tree can't be shown: ${error.message}`));
  }
}

export default { render };
