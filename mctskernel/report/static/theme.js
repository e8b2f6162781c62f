// Light or dark, as the host has it; charts take their colours from the style sheet.

/** "dark" or "light": what the notebook says, or else the system. */
export function hostTheme() {
  const body = document.body;
  if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  const kind = body.dataset.vscodeThemeKind;
  if (kind) return kind.includes("light") ? "light" : "dark";
  if (document.documentElement.getAttribute("theme")) return document.documentElement.getAttribute("theme");
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** The colours of charts, from the custom properties of an element. */
export function palette(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    text: read("--text"),
    muted: read("--muted"),
    faint: read("--faint"),
    grid: read("--grid"),
    surface: read("--surface"),
    accent: read("--accent"),
    best: read("--best"),
    bad: read("--bad"),
    categories: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map((number) => read(`--category-${number}`)),
  };
}

/** What all charts have in common. */
export function chartLayout(colours, more) {
  const axis = { gridcolor: colours.grid, zerolinecolor: colours.grid, linecolor: colours.grid, tickcolor: colours.grid, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colours.text, family: "system-ui, sans-serif", size: 12 },
    margin: { l: 56, r: 16, t: 16, b: 44 },
    hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.muted, activecolor: colours.accent },
    showlegend: false,
    ...more,
    xaxis: { ...axis, ...more?.xaxis },
    yaxis: { ...axis, ...more?.yaxis },
  };
}

/** Ticks of a logarithmic axis between two values, as people read them; fewer digits the further it reaches. */
export function logTicks(low, high, text) {
  const decades = Math.log10(high / low);
  const digits = decades < 1.2 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 4 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of digits) {
      const value = Number(`${digit}e${power}`);
      if (value >= low * 0.6 && value <= high * 1.6) ticks.push(value);
    }
  }
  return { tickvals: ticks, ticktext: ticks.map(text) };
}

/** Named one by one: plotly's own choice has a button that sends the chart to a server. */
export const CHART = {
  displaylogo: false,
  responsive: true,
  plotlyServerURL: "",
  modeBarButtons: [["toImage"], ["pan2d", "zoom2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
};
