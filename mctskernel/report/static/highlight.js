// Sources of kernels as highlighted lines.

const STRINGS = String.raw`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`;
const COMMENTS = {
  cuda: String.raw`//[^\n]*|/\*[^]*?(?:\*/|(?![^]))`,
  triton: String.raw`#[^\n]*|"""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))`,
};
const DIRECTIVE = { cuda: String.raw`^[ \t]*#[ \t]*\w+`, triton: String.raw`@[\w.]+` };
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F]+|\d[\d.]*(?:[eE][+-]?\d+)?)[uUlLfF]*`;
const KEYWORDS = new Set(
  ("__constant__ __device__ __forceinline__ __global__ __launch_bounds__ __restrict__ __shared__ __syncthreads alignas and as asm assert auto " +
    "bool break case char class const constexpr continue def do double elif else enum extern False float for from goto half if import in inline int is " +
    "lambda long namespace None not operator or pass pragma raise return short signed sizeof static struct switch template this True typedef " +
    "typename union unroll unsigned using void volatile while with yield int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t").split(" "),
);

/** The lines of a text, each a list of [class, text]; the class is empty for plain text. */
export function highlighted(text, language) {
  const lines = [[]];
  const add = (kind, piece) =>
    piece.split("\n").forEach((part, at) => {
      if (at) lines.push([]);
      if (part) lines.at(-1).push([kind, part]);
    });
  const tokens = new RegExp(
    `(?<comment>${COMMENTS[language] ?? "(?!)"})|(?<string>${STRINGS})|(?<keyword>${DIRECTIVE[language] ?? "(?!)"})|(?<number>${NUMBER})|(?<word>[A-Za-z_]\\w*)`,
    "gm",
  );
  let last = 0;
  for (const match of text.matchAll(tokens)) {
    const { word, ...kinds } = match.groups;
    const kind = word ? (KEYWORDS.has(word) ? "keyword" : "") : Object.keys(kinds).find((name) => kinds[name]);
    if (!kind) continue;
    add("", text.slice(last, match.index));
    add(kind, match[0]);
    last = match.index + match[0].length;
  }
  add("", text.slice(last));
  return lines;
}
