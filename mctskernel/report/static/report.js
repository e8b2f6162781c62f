// The host of a report: a page of its own, whose parts are compressed in it.

import { el, fill, sentences } from "./dom.js";
import { inflated, NODES_A_PART, partSource } from "./parts.js";
import { buildView } from "./view.js";
import { hostTheme } from "./theme.js";
import { bestPath, editTable, environmentTable, failureTable, headline, progressChart, rooflineChart } from "./sections.js";

function bytesOf(name) {
  const block = document.querySelector(`script[data-part="${name}"]`);
  if (!block) throw new Error(`the report has no part ${name}`);
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(block.textContent);
  const letters = atob(block.textContent);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

async function loadPlotly() {
  // As a separate script it is compiled on another thread, while the headline is drawn.
  const address = URL.createObjectURL(await inflated(bytesOf("plotly"), "text/javascript"));
  await new Promise((resolve, reject) => {
    document.head.append(el("script", { src: address, load: resolve, error: () => reject(new Error("plotly.js doesn't load")) }));
  });
  URL.revokeObjectURL(address);
  return window.Plotly;
}

function section(id, title, ...content) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...content);
}

async function main() {
  const root = document.querySelector(".mctskernel");
  root.dataset.theme = hostTheme();
  const plotlyComes = loadPlotly();
  const source = partSource(async (name) => bytesOf(name));
  const among = (kind) => async (node) => (await source.part(`${kind}/${Math.floor(node / NODES_A_PART)}`))[node % NODES_A_PART];
  source.details = among("details");
  const doc = await source.part("document");
  const holder = el("div", { class: "view" });
  const theme = el("button", { type: "button", class: "theme", click: () => (root.dataset.themeChosen = root.dataset.theme === "dark" ? "light" : "dark") }, "light / dark");
  const has = { roofline: doc.roofline !== null, failures: doc.failures.length > 0, edits: doc.edits.length > 0 };
  const titles = [["tree", "Tree"], ["path", "Best path"], ["progress", "Best so far"], ["roofline", "Roofline"], ["failures", "Failures"], ["edits", "Edits by category"], ["environment", "Environment"]].filter(([id]) => has[id] !== false);
  fill(root, headline(doc), el("nav", { "aria-label": "Sections" }, titles.map(([id, title]) => el("a", { href: `#${id}` }, title)), theme), section("tree", "Tree", holder));
  const plotly = await plotlyComes;
  const view = await buildView(holder, plotly, source);
  const go = (node) => {
    view.select(node);
    document.getElementById("tree").scrollIntoView({ behavior: "smooth" });
  };
  const story = await source.part("story");
  const content = {
    path: () => [bestPath(story, doc.headline.numbers, go)],
    progress: () => progressChart(plotly, doc, go, view.charts),
    roofline: () => rooflineChart(plotly, doc, go, view.charts),
    failures: () => [failureTable(doc, go)],
    edits: () => [editTable(doc), sentences(story.notes)],
    environment: () => [el("details", {}, el("summary", {}, `${Object.keys(doc.environment).length} facts`), environmentTable(doc))],
  };
  root.append(...titles.slice(1).map(([id, title]) => section(id, title, ...content[id]())));
  root.dataset.ready = "true";
}

main().catch((error) => {
  document.querySelector(".mctskernel").replaceChildren(el("p", { class: "message" }, `This report can't be shown: ${error.message}`));
});
