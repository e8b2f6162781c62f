// Sources and what changed in them, line by line.

import { el } from "./dom.js";

const CONTEXT = 3;

/** The rows of a diff: [old number, new number, line, sign], with null for lines that are left out; none that is marked. */
export function diffRows(old, made, changes, marked = new Map()) {
  const rows = [];
  let [from, to] = [0, 0];
  const keep = (count) => {
    for (let at = 0; at < count; at++) rows.push([from++, to++, old[from - 1], " "]);
  };
  for (const [a0, a1, , b1] of changes) {
    keep(a0 - from);
    while (from < a1) rows.push([from++, null, old[from - 1], "-"]);
    while (to < b1) rows.push([null, to++, made[to - 1], "+"]);
  }
  keep(old.length - from);
  return near(rows, marked);
}

/** A table of rows, whose lines are lists of [class, text], with the notes on lines of the new source below them. */
export function diffTable(rows, caption, marked = new Map()) {
  const body = rows.flatMap((row) => {
    if (row === null) return el("tr", { class: "gap" }, el("td", { colspan: 4 }, "⋯"));
    const [old, made, line, sign] = row;
    const kind = { "+": "added", "-": "removed" }[sign];
    const notes = made === null ? [] : (marked.get(made + 1) ?? []);
    const shown = el(
      "tr",
      { class: [kind, notes.length ? "stalled" : ""].filter(Boolean).join(" ") },
      el("td", { class: "line" }, old === null ? "" : String(old + 1)),
      el("td", { class: "line" }, made === null ? "" : String(made + 1)),
      el("td", { class: "sign" }, sign),
      el("td", { class: "code" }, line.map(([kind, text]) => (kind ? el("span", { class: kind }, text) : text))),
    );
    return [shown, ...notes.map((text) => el("tr", { class: "stall" }, el("td", { colspan: 3 }), el("td", {}, text)))];
  });
  return el("div", { class: "scroll source", tabindex: "0", role: "region", "aria-label": caption }, el("table", {}, el("tbody", {}, body)));
}

function near(rows, marked) {
  const shown = new Uint8Array(rows.length);
  rows.forEach((row, at) => {
    const is = row[3] !== " " || (row[1] !== null && marked.has(row[1] + 1));
    if (is) shown.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  const found = [];
  rows.forEach((row, at) => {
    if (shown[at]) found.push(row);
    else if (found.at(-1) !== null) found.push(null);
  });
  return found;
}
