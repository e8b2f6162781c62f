// Charts are drawn when they come into sight, so that what is seen first comes first.

/** Charts of a page; `add(element, draw)` has `draw` called with the palette, now and whenever that changes. */
export function chartBook(colours) {
  const draws = new Map();
  const seen = new Set();
  const show = (element) => {
    if (seen.has(element)) return;
    seen.add(element);
    draws.get(element)(colours);
  };
  window.addEventListener("beforeprint", () => [...draws.keys()].forEach(show));
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) show(target);
    },
    { rootMargin: "200px" },
  );
  return {
    add(element, draw) {
      draws.set(element, draw);
      observer.observe(element);
    },
    redraw(element) {
      if (seen.has(element)) draws.get(element)(colours);
    },
    recolour(others) {
      colours = others;
      seen.forEach((element) => draws.get(element)(colours));
    },
  };
}
