// Where nodes are drawn: leaves side by side, a parent over the middle of its children.

/** The children of every node, in order of creation. */
export function childrenOf(nodes) {
  const children = nodes.map(() => []);
  for (const node of nodes) if (node.parent !== null) children[node.parent].push(node.id);
  return children;
}

/** Positions of the nodes below the root that no collapsed node hides; hidden ones have NaN. */
export function tidyTree(nodes, children, collapsed) {
  const x = new Float64Array(nodes.length).fill(NaN);
  const y = new Float64Array(nodes.length).fill(NaN);
  if (!nodes.length) return { x, y };
  const order = [];
  const waiting = [0];
  while (waiting.length) {
    const id = waiting.pop();
    order.push(id);
    if (!collapsed.has(id)) for (let at = children[id].length - 1; at >= 0; at--) waiting.push(children[id][at]);
  }
  let leaf = 0;
  for (const id of order) {
    y[id] = -nodes[id].depth;
    if (collapsed.has(id) || !children[id].length) x[id] = leaf++;
  }
  for (const id of order.reverse()) {
    if (!Number.isNaN(x[id])) continue;
    const below = children[id];
    x[id] = (x[below[0]] + x[below[below.length - 1]]) / 2;
  }
  return { x, y };
}

/** Positions by the order of evaluation and by speed-up, which shows when the search came to what. */
export function overTime(nodes, children, collapsed) {
  const tidy = tidyTree(nodes, children, collapsed);
  const x = tidy.x.map((value, id) => (Number.isNaN(value) ? NaN : id));
  const known = nodes.map((node) => node.speedup).filter((value) => value > 0);
  const failed = known.length ? Math.log10(Math.min(...known)) - 0.1 : 0;
  const y = tidy.y.map((value, id) => (Number.isNaN(value) ? NaN : nodes[id].speedup ? Math.log10(nodes[id].speedup) : failed));
  return { x, y };
}
