// Parts of a run, compressed by gzip, inflated by the browser itself.

/** Nodes whose details travel together, as Python has it. */
export const NODES_A_PART = 32;

/** What compressed bytes hold, as a blob. */
export function inflated(bytes, type) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream, { headers: { "Content-Type": type } }).blob();
}

/** The text of compressed bytes. */
export async function inflate(bytes) {
  return (await inflated(bytes, "text/plain")).text();
}

/** A source of parts that are fetched once each. `fetch(name)` promises compressed bytes. */
export function partSource(fetch) {
  const found = new Map();
  const part = (name) => {
    if (!found.has(name)) found.set(name, fetch(name).then(inflate).then(JSON.parse));
    return found.get(name);
  };
  return { part };
}
