// Elements are made of text and attributes alone: nothing from a run is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (functions are event listeners, nulls are left out) and children, texts or elements. */
export function el(tag, attributes, ...children) {
  const element = tag === "svg" || tag === "path" ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Puts children in the place of what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** A table in a box that scrolls sideways; columns are [heading, is it a number], cells texts or elements. */
export function table(columns, rows, caption) {
  const head = el("tr", {}, columns.map(([name, number]) => el("th", { scope: "col", class: number ? "number" : null }, name)));
  const body = rows.map((cells) =>
    el("tr", {}, cells.map((cell, at) => el("td", { class: columns[at][1] ? "number" : null }, cell ?? ""))),
  );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, head), el("tbody", {}, body)),
  );
}

/** A counter's name, which may be broken at its underscores and full stops. */
export function counterName(name) {
  const parts = name.split(/(?<=[._])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part]));
  return el("code", {}, parts);
}

/** A list of sentences; nothing without any. */
export function sentences(texts, className) {
  return texts && texts.length ? el("ul", { class: className ?? "sentences" }, texts.map((text) => el("li", {}, text))) : null;
}
