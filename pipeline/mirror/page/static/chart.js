// A chart of one flow. A step of unknown lag is a break in the line and a coloured band, never a value.

import { bytes, count, dateAndTime, duration, element, time } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 100;
const FORMATS = { seconds: duration, offsets: count, bytes };

/** Returns a value of a measure as text. */
export const formatted = (measure, value) => FORMATS[measure](value);

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Returns the ranges [from, to) of steps for which the test holds. */
function ranges(length, test) {
  const found = [];
  for (let step = 0; step < length; step++) {
    if (!test(step)) continue;
    const last = found[found.length - 1];
    if (last && last[1] === step) last[1] = step + 1;
    else found.push([step, step + 1]);
  }
  return found;
}

/** Returns the text of a path through the known values; a null breaks the line. A value alone becomes a dot. */
function line(values, top) {
  return ranges(values.length, (step) => values[step] !== null)
    .map(([from, to]) => {
      const points = [];
      for (let step = from; step < to; step++) points.push(`${step + 0.5} ${(HEIGHT - (values[step] / top) * HEIGHT).toFixed(2)}`);
      return `M${points.join("L")}${to - from === 1 ? "h.01" : ""}`;
    })
    .join("");
}

/** Returns the next of 1, 2, 5, 10, ... at or above the value. */
function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= value * 0.999999);
}

/** Returns a figure of a flow's entry in `/v1/lag`. */
export function chart(flow, history, measure) {
  const lags = flow[measure], least = flow[`least_${measure}`], rates = flow.bytes_per_second;
  const steps = lags.length;
  const isAbsent = (step) => rates[step] === null;
  const known = [...lags, ...least].filter((value) => value !== null);
  const top = roundedUp(Math.max(1, ...known));
  const svg = shape("svg", { viewBox: `0 0 ${steps} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  for (const [kind, test] of [["absent", isAbsent], ["unknown", (step) => lags[step] === null && !isAbsent(step)]]) {
    for (const [from, to] of ranges(steps, test)) {
      svg.append(shape("rect", { class: kind, x: from, y: 0, width: to - from, height: HEIGHT }));
    }
  }
  svg.append(shape("path", { class: "least", d: line(least.map((value, step) => (lags[step] === null ? value : null)), top) }));
  svg.append(shape("path", { class: "lag", d: line(lags, top) }));
  const cursor = shape("path", { class: "cursor" });
  svg.append(cursor);

  const at = (step) => history.end_ms - (steps - 1 - step) * history.step_seconds * 1000;
  const text = (step) => {
    if (isAbsent(step)) return "the mirror did not run";
    if (lags[step] !== null) return formatted(measure, lags[step]);
    return least[step] === null ? "unknown" : `unknown, at least ${formatted(measure, least[step])}`;
  };
  const unknown = lags.filter((value, step) => value === null && !isAbsent(step)).length;
  svg.setAttribute("aria-label", `now ${text(steps - 1)}; unknown in ${unknown} of ${steps} steps`);
  const value = element("span", "number", text(steps - 1));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const step = Math.min(steps - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * steps)));
    cursor.setAttribute("d", `M${step + 0.5} 0V${HEIGHT}`);
    value.textContent = `${dateAndTime(at(step)).slice(5)}: ${text(step)}`;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.removeAttribute("d");
    value.textContent = text(steps - 1);
  });
  const figure = element("figure", "", element("figcaption", "", element("b", "", flow.name), value));
  figure.append(element("div", "plot", svg, element("span", "top", formatted(measure, top))));
  const axis = [0, 0.25, 0.5, 0.75, 1].map((part) => element("span", "", time(at(Math.round(part * (steps - 1))), false)));
  figure.append(element("div", "axis", ...axis));
  return figure;
}
