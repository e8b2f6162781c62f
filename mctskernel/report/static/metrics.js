// What nodes can be coloured by, and the shapes of outcomes.

export const OUTCOMES = {
  ok: { symbol: "circle", glyph: "●" },
  quarantined: { symbol: "hexagon", glyph: "⬢" },
  "build error": { symbol: "x", glyph: "✖" },
  "launch error": { symbol: "cross", glyph: "✚" },
  "wrong result": { symbol: "diamond", glyph: "◆" },
  race: { symbol: "star", glyph: "★" },
  timeout: { symbol: "triangle-up", glyph: "▲" },
  crash: { symbol: "square", glyph: "■" },
  rejected: { symbol: "pentagon", glyph: "⬟" },
  "can't be verified here": { symbol: "diamond-tall", glyph: "◊" },
  "in flight": { symbol: "circle-open", glyph: "○" },
};

/** How a node's evaluation ended, as it is drawn. */
export function outcomeOf(node) {
  if (!node.outcome) return "in flight";
  return node.outcome === "ok" && node.quarantine ? "quarantined" : node.outcome;
}

export const NUMBERS = {
  speedup: { title: "speed-up", of: (node) => node.speedup },
  gain: { title: "gain over parent", of: (node) => node.gain },
  seconds: { title: "time, s", of: (node) => node.seconds },
  reward: { title: "reward", of: (node) => node.reward },
  value: { title: "value (Q)", of: (node) => node.value },
  visits: { title: "visits", of: (node) => node.visits || null },
  prior: { title: "prior of the edit", of: (node) => node.prior },
  order: { title: "order of creation", of: (node) => node.id },
  depth: { title: "depth", of: (node) => node.depth },
  cost_seconds: { title: "cost of evaluation, s", of: (node) => node.cost_seconds || null },
};

export const KINDS = {
  outcome: { title: "outcome", of: outcomeOf },
  category: { title: "category of the edit", of: (node) => node.category || "starting kernel" },
  proposer: { title: "proposer", of: (node) => node.proposer || "starting kernel" },
  bottleneck: { title: "bottleneck", of: (node) => node.bottleneck || "unknown" },
};

/** The numbers that at least one node of a run has. */
export function knownNumbers(nodes) {
  return Object.entries(NUMBERS).filter(([, metric]) => nodes.some((node) => metric.of(node) !== null && metric.of(node) !== undefined));
}

/** The kinds of a metric among nodes, the most frequent first, with how many there are. */
export function kindsAmong(nodes, metric) {
  const counts = new Map();
  for (const node of nodes) counts.set(metric.of(node), (counts.get(metric.of(node)) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}
