// Quantities as people read them.

/** Seconds in the largest unit that leaves at least one of them. */
export function timeText(seconds, digits = 4) {
  if (seconds === null || seconds === undefined) return "";
  for (const [scale, unit] of [[1, "s"], [1e3, "ms"], [1e6, "us"]]) {
    if (seconds * scale >= 1) return `${precise(seconds * scale, digits)} ${unit}`;
  }
  return `${precise(seconds * 1e9, digits)} ns`;
}

/** A speed-up or a gain; modelled ones have two digits, as their uncertainty is about 12 %. */
export function ratioText(ratio, numbers) {
  if (ratio === null || ratio === undefined) return "";
  if (numbers !== "modelled") return `${ratio.toFixed(2)}x`;
  return ratio >= 0.95 && ratio < 9.95 ? `${ratio.toFixed(1)}x` : `${precise(ratio, 2)}x`;
}

/** A number with few digits, thousands separated. */
export function numberText(value) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value) || Math.abs(value) >= 1e5) return Math.round(value).toLocaleString("en-US");
  return String(precise(value, 4));
}

/** Seconds of waiting. */
export function durationText(seconds) {
  if (seconds < 100) return `${precise(seconds, 3)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${precise(seconds / 3600, 3)} h`;
}

/** A text no longer than this. */
export function shortened(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function precise(value, digits) {
  return Number(value.toPrecision(digits));
}
