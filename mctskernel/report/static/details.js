// Everything that is known about the selected node, a tab for each kind of evidence.

import { counterName, el, fill, sentences, table } from "./dom.js";
import { diffRows, diffTable } from "./diff.js";
import { highlighted } from "./highlight.js";
import { durationText, numberText, ratioText, timeText } from "./format.js";
import { outcomeOf, OUTCOMES } from "./metrics.js";
import { chartLayout, CHART } from "./theme.js";

const TABS = [
  ["Overview", overview, () => true],
  ["Diff", diff, () => true],
  ["Model", conversation, ({ details }) => details.conversation],
  ["Log", log, ({ details }) => details.log],
  ["Checks", verification, ({ details }) => details.checks],
  ["Timing", timing, ({ details }) => details.timings],
  ["Counters", counters, ({ details }) => details.counters],
  ["Reward", reward, ({ details }) => details.reward],
];

/** The panel of a node. `found` has the node, its details, and those of its parent and of the baseline. */
export function nodePanel(found, chosen, onTab, go) {
  const known = TABS.filter(([, , has]) => has(found));
  const body = el("div", { class: "tab-body", role: "tabpanel", id: found.panel, tabindex: "0" });
  const buttons = known.map(([title]) => el("button", { type: "button", role: "tab", "aria-controls": found.panel, click: () => show(title) }, title));
  const show = (title) => {
    const at = Math.max(0, known.findIndex(([name]) => name === title));
    buttons.forEach((button, number) => {
      button.setAttribute("aria-selected", String(number === at));
      button.tabIndex = number === at ? 0 : -1;
    });
    body.setAttribute("aria-label", known[at][0]);
    fill(body, known[at][1](found, go));
    body.scrollTop = 0;
    onTab(known[at][0]);
  };
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Evidence", keydown: (event) => arrows(event, buttons) }, buttons);
  show(chosen);
  return [heading(found, go), tabs, body];
}

function arrows(event, buttons) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length];
  next.click();
  next.focus();
}

function heading({ node, nodes, best, source }, go) {
  const outcome = outcomeOf(node);
  const facts = [
    ["time", timeText(node.seconds)],
    ["over parent", ratioText(node.gain, source)],
    ["over start", ratioText(node.speedup, source)],
    ["visits", numberText(node.visits ?? 0)],
    ["what moved", node.moved],
  ];
  const way = lineage(nodes, node).map((each) =>
    el("button", { type: "button", class: "link", title: each.title, "aria-current": each.id === node.id ? "true" : null, click: () => go(each.id) }, String(each.id)),
  );
  return el(
    "header",
    { class: "node-heading" },
    el("p", { class: "way" }, el("span", { class: "label" }, "path"), way.flatMap((button, at) => (at ? [" › ", button] : [button]))),
    el("h3", {}, el("span", { class: "node-number" }, `node ${node.id}`), " ", node.title),
    el(
      "p",
      { class: "badges" },
      el("span", { class: `badge ${outcome === "ok" ? "good" : outcome === "in flight" ? "" : "bad"}` }, `${OUTCOMES[outcome]?.glyph ?? ""} ${outcome}`),
      node.id === best ? el("span", { class: "badge best" }, "best") : null,
      node.category ? el("span", { class: "badge" }, node.category) : null,
      node.proposer ? el("span", { class: "badge" }, node.proposer) : null,
      node.guard ? el("span", { class: "badge bad" }, `detected by ${node.guard}`) : null,
    ),
    el("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  );
}

/** The nodes from the root to a node. */
export function lineage(nodes, node) {
  const way = [];
  for (let each = node; each; each = each.parent === null ? null : nodes[each.parent]) way.unshift(each);
  return way;
}

function overview({ node, details }) {
  return [
    node.message ? el("p", { class: "message" }, node.message) : null,
    node.quarantine ? el("p", { class: "message" }, `Quarantined: ${node.quarantine}`) : null,
    details.rationale ? [el("h4", {}, "Why it was proposed"), el("p", {}, details.rationale)] : null,
    details.expected_effect ? el("p", {}, el("strong", {}, "Expected: "), details.expected_effect) : null,
    details.factors ? table([["decides"], ["as"]], details.factors, "What the edit decides") : null,
    details.effects ? [el("h4", {}, "What it did"), sentences(details.effects)] : null,
    details.evidence ? [el("h4", {}, "What limits it"), sentences(details.evidence)] : null,
    details.causes ? causes(details.causes) : null,
    details.flags ? [el("h4", {}, "Warnings of guardrails"), sentences(details.flags)] : null,
    details.resources
      ? table(
          [["kernel"], ["registers", true], ["shared, B", true], ["spills, B", true], ["stack, B", true]],
          details.resources.map((each) => [each.kernel, numberText(each.registers), numberText(each.shared_bytes), numberText(each.spill_store_bytes + each.spill_load_bytes), numberText(each.stack_bytes)]),
          "Resources",
        )
      : null,
    details.stage_seconds
      ? [el("h4", {}, "What the evaluation cost"), table([["stage"], ["seconds", true]], Object.entries(details.stage_seconds).map(([name, value]) => [name, durationText(value)]), "Cost by stage")]
      : null,
  ].flat();
}

function causes(found) {
  return [
    el("h4", {}, "Causes"),
    el("ul", { class: "causes" }, found.map((cause) =>
      el("li", {}, el("meter", { min: "0", max: "1", value: String(cause.share), "aria-label": cause.bottleneck }), el("span", {}, `${Math.round(100 * cause.share)} % `, cause.sentence)),
    )),
  ];
}

function diff({ node, details, parent, baseline }) {
  const source = linesOf(details);
  const whole = source.map((line, at) => [null, at, line, " "]);
  const stalls = stalledLines(details.causes ?? []);
  const choices = [
    ...(parent ? [["against its parent", () => diffRows(linesOf(parent), source, details.from_parent ?? [], stalls)]] : []),
    ...(baseline && node.parent ? [["against the starting kernel", () => diffRows(linesOf(baseline), source, details.from_baseline ?? [], stalls)]] : []),
    ["whole source", () => whole],
  ];
  const body = el("div", {});
  const show = (at) => {
    const rows = choices[at][1]();
    fill(body, rows.length ? diffTable(rows, `Source of node ${node.id}, ${choices[at][0]}`, stalls) : el("p", {}, "No line differs."));
  };
  const select = el("select", { "aria-label": "What the source is compared with", change: (event) => show(event.target.selectedIndex) }, choices.map(([title]) => el("option", {}, title)));
  show(0);
  return [el("p", { class: "controls" }, select), body];
}

/** The causes that name lines of the source, by the number of the line. */
function stalledLines(causes) {
  const found = new Map();
  for (const cause of causes) {
    for (const [, list] of cause.sentence.matchAll(/\blines? ([\d, and]*\d)/g)) {
      for (const line of list.match(/\d+/g)) found.set(Number(line), [...(found.get(Number(line)) ?? []), `${Math.round(100 * cause.share)} % ${cause.sentence}`]);
    }
  }
  return found;
}

function linesOf({ source, language }) {
  return highlighted(source.replace(/\n$/, ""), language);
}

function conversation({ details }) {
  const found = { input_tokens: 0, output_tokens: 0, dollars: 0, seconds: 0, ...details.conversation };
  const said = [found.model, found.expert, `${numberText(found.input_tokens)} input tokens, ${numberText(found.output_tokens)} output tokens`, `$${found.dollars.toFixed(4)}`, durationText(found.seconds)];
  return [
    el("p", { class: "muted" }, said.filter(Boolean).join(" · ")),
    found.problem ? el("p", { class: "message" }, found.problem) : null,
    ...messages(found.prompt).map(([role, text]) => el("details", {}, el("summary", {}, `Prompt: ${role}`), el("pre", { tabindex: "0" }, text))),
    el("h4", {}, "Reply"),
    el("pre", { tabindex: "0" }, found.reply || "none"),
  ];
}

/** The messages of a prompt; the text as it is where it isn't a list of them. */
function messages(prompt) {
  try {
    const found = JSON.parse(prompt);
    if (Array.isArray(found) && found.every((each) => typeof each?.content === "string")) return found.map((each) => [String(each.role), each.content]);
  } catch {
    // Not JSON: shown as text.
  }
  return [["text", prompt]];
}

function log({ details }) {
  return [el("pre", { tabindex: "0" }, details.log)];
}

function verification({ details }) {
  const passed = details.checks.filter((check) => check.passed).length;
  const rows = details.checks.map((check) => [
    check.shape,
    String(check.seed),
    el("span", { class: check.passed ? "good" : "bad" }, check.passed ? "passed" : "failed"),
    `${(100 * check.error).toPrecision(3)} %`,
    [check.guard, check.message].filter(Boolean).join(": "),
  ]);
  return [
    el("p", {}, `${passed} of ${details.checks.length} checks passed. The error is the largest one, as a share of the tolerance.`),
    table([["shape"], ["seed", true], ["verdict"], ["error", true], ["note"]], rows, "Checks"),
  ];
}

function timing({ details, plotly, colours, source }) {
  const rows = details.timings.map((each, at) => [
    each.shape,
    timeText(each.seconds),
    each.high > each.low ? `${timeText(each.low)} to ${timeText(each.high)}` : "",
    String(each.samples?.length || ""),
    timeText(each.baseline_seconds),
    each.baseline_seconds ? ratioText(each.baseline_seconds / each.seconds, source) : "",
    ...(details.gpu ? [details.conditions?.[at] ?? ""] : []),
  ]);
  const charts = details.timings.filter((each) => each.samples?.length > 1).map((each) => sampleChart(plotly, each, colours));
  return [
    el("p", { class: "muted" }, `The median of one run, with its interval${source ? `, ${source}` : ""}.`),
    table([["shape"], ["time", true], ["interval", true], ["samples", true], ["starting kernel", true], ["speed-up", true], ...(details.gpu ? [[details.gpu]] : [])], rows, "Times"),
    ...charts,
  ];
}

function sampleChart(plotly, found, colours) {
  const element = el("div", { class: "chart small", role: "img", "aria-label": `${found.samples.length} samples at ${found.shape}` });
  const micro = (value) => value * 1e6;
  const band = (x0, x1, color, opacity) => ({ type: "rect", xref: "paper", x0: 0, x1: 1, y0: x0, y1: x1, fillcolor: color, opacity, line: { width: 0 } });
  const trace = { type: "scatter", mode: "markers", x: found.samples.map((_, at) => at + 1), y: found.samples.map(micro), marker: { color: colours.accent, size: 7 }, hovertemplate: "%{y:.4g} us<extra></extra>" };
  const layout = chartLayout(colours, {
    height: 220,
    xaxis: { title: { text: `sample, ${found.shape}` } },
    yaxis: { title: { text: "us" } },
    shapes: [band(micro(found.low), micro(found.high), colours.accent, 0.2), { type: "line", xref: "paper", x0: 0, x1: 1, y0: micro(found.seconds), y1: micro(found.seconds), line: { color: colours.accent, width: 2 } }],
  });
  // The panel isn't in the page yet, and plotly measures what it draws into.
  requestAnimationFrame(() => element.isConnected && plotly.newPlot(element, [trace], layout, CHART));
  return element;
}

function counters({ details, parent }) {
  const before = parent?.counters ?? {};
  const rows = Object.entries(details.counters).map(([name, after]) => ({ name, old: before[name], after, moved: moved(before[name], after) }));
  const body = el("div", {});
  const show = (all) =>
    fill(
      body,
      table(
        [["counter"], ["parent", true], ["this", true], ["change", true]],
        rows.filter((row) => all || row.moved === null || Math.abs(row.moved) > 0.01).sort((a, b) => Math.abs(b.moved ?? 0) - Math.abs(a.moved ?? 0)).map(counterRow),
        "Counters before and after",
      ),
    );
  show(false);
  const box = el("input", { type: "checkbox", change: (event) => show(event.target.checked) });
  return [el("p", { class: "controls" }, el("label", {}, box, " show changes of 1 % or less too")), body];
}

function counterRow({ name, old, after, moved: change }) {
  const text = change === null ? "" : Number.isFinite(change) ? `${change > 0 ? "+" : "−"}${change > Math.log(2) || change < -Math.log(2) ? `${numberText(Math.exp(Math.abs(change)))}x` : `${(100 * Math.abs(Math.expm1(change))).toFixed(1)} %`}` : "new";
  return [counterName(name), numberText(old), numberText(after), text];
}

/** The logarithm of a counter's ratio; null where it has none. */
function moved(before, after) {
  if (before === undefined) return null;
  if (before === after) return 0;
  return before > 0 && after > 0 ? Math.log(after / before) : Infinity;
}

function reward({ node, details }) {
  const terms = Object.entries(details.reward);
  const most = Math.max(...terms.map(([, value]) => Math.abs(value)), 1e-12);
  const rows = terms.map(([name, value]) => [name, numberText(value), bar(value / most)]);
  const model = Object.entries(details.terms ?? {}).sort((a, b) => b[1] - a[1]);
  return [
    el("p", {}, "The reward is the sum of its terms: ", el("strong", {}, numberText(node.reward)), "."),
    table([["term"], ["value", true], [""]], rows, "Terms of the reward"),
    model.length ? [el("h4", {}, "Parts of the modelled time"), table([["part"], ["alone", true], [""]], model.map(([name, value]) => [name, timeText(value), bar(value / model[0][1])]), "Parts of the time")] : null,
  ].flat();
}

function bar(fraction) {
  const width = `${Math.round(100 * Math.min(1, Math.abs(fraction)))}%`;
  return el("span", { class: `bar ${fraction < 0 ? "negative" : ""}`, style: `--width: ${width}`, "aria-hidden": "true" });
}
