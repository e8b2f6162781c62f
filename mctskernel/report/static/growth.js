// The tree as it was after some steps of its growth.

/** For each node the step at which it went to be evaluated, and the one at which it came back (or Infinity). */
export function times(doc) {
  const submitted = new Float64Array(doc.nodes.length).fill(Infinity);
  const evaluated = new Float64Array(doc.nodes.length).fill(Infinity);
  doc.growth.forEach((step, at) => {
    if (step >= 0) submitted[step] = at + 1;
    else evaluated[-step - 1] = at + 1;
  });
  return { submitted, evaluated };
}

/** Visits of each node after so many steps: evaluations that had come back of it and of all below it. */
export function visitsAt(doc, evaluated, step) {
  const visits = new Int32Array(doc.nodes.length);
  for (let id = doc.nodes.length - 1; id >= 0; id--) {
    if (evaluated[id] <= step) visits[id] += 1;
    const parent = doc.nodes[id].parent;
    if (parent !== null) visits[parent] += visits[id];
  }
  return visits;
}

/** The last moment of the search at or before a step; undefined before the first evaluation. */
export function momentAt(doc, step) {
  let evaluations = 0;
  for (let at = 0; at < step; at++) if (doc.growth[at] < 0) evaluations += 1;
  return doc.progress[evaluations - 1];
}
