// Latency of one topic over time: for each stage a chart of p50, p95 and p99, and the same as a table.

import { ask } from "./contact.js";
import { readLatency } from "./documents.js";
import { count, element, milliseconds, minute, nameElement, sentence, shape } from "./text.js";

const EVERY_MS = 30_000;
const WIDTH = 640, HEIGHT = 170, LEFT = 58, BOTTOM = 22, TOP = 8, RIGHT = 10;
const LINES = [["p50", "p50", "half of the records took at most this"], ["p95", "p95", "19 of 20"], ["p99", "p99", "99 of 100"]];
const TABLE_ROWS = 200;
const MAX_NAMES = 50;
const by = (id) => document.getElementById(id);

/** Returns the decades of a scale that holds all values, as exponents of 10 ms. */
function decades(stages) {
  const values = stages.flatMap((stage) => stage.points.flatMap((point) => [point.p50, point.p99])).filter((value) => value > 0);
  let low = Infinity, high = 0;
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const from = Math.max(-1, Math.floor(Math.log10(Number.isFinite(low) ? low : 1)));
  return [from, Math.max(from + 1, Math.ceil(Math.log10(Math.max(high, 1))))];
}

/** Returns a mark of the scale: 0.1 ms, 100 ms, 10 s, 1,000 s. */
const scaleMark = (power) => (power < 3 ? milliseconds(10 ** power) : `${count(10 ** (power - 3))} s`);

/** Returns the usual distance of two points: a longer one is a hole in the line. */
function stepOf(points) {
  const steps = points.slice(1).map((point, index) => point.startMs - points[index].startMs).sort((left, right) => left - right);
  return steps.length ? steps[Math.floor(steps.length / 4)] : Infinity;
}

function chart(stage, [fromMs, toMs], [low, high]) {
  const x = (ms) => LEFT + ((ms - fromMs) / Math.max(1, toMs - fromMs)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart" });
  const every = Math.ceil((high - low) / 5);
  for (let power = low; power <= high; power += every) {
    svg.append(shape("path", { class: "grid-line", d: `M${LEFT} ${y(10 ** power)}H${WIDTH - RIGHT}` }));
    svg.append(shape("text", { x: LEFT - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, scaleMark(power)));
  }
  for (const part of [0, 0.5, 1]) {
    const anchor = ["start", "middle", "end"][part * 2];
    svg.append(shape("text", { x: x(fromMs + part * (toMs - fromMs)), y: HEIGHT - 6, "text-anchor": anchor }, minute(fromMs + part * (toMs - fromMs)).slice(5)));
  }
  const step = stepOf(stage.points);
  for (const [key] of LINES) {
    const d = stage.points.map((point, index) => {
      const isHole = index === 0 || point.startMs - stage.points[index - 1].startMs > 1.5 * step;
      const isAlone = isHole && !(stage.points[index + 1]?.startMs - point.startMs <= 1.5 * step);
      return `${isHole ? "M" : "L"}${x(point.startMs).toFixed(1)} ${y(point[key]).toFixed(1)}${isAlone ? "h.01" : ""}`;
    }).join("");
    svg.append(shape("path", { class: `latency ${key}`, d }));
  }
  const last = stage.points[stage.points.length - 1];
  const words = last ? LINES.map(([key, label]) => `${label} ${milliseconds(last[key])}`).join(", ") : "no counts";
  svg.setAttribute("aria-label", sentence(`Latency at ${stage.stage} of ${stage.cluster}, newest window: ${words}`));
  const now = element("span", "number", words);
  const cursor = shape("path", { class: "cursor" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = stage.points.reduce((best, point) => (!best || Math.abs(x(point.startMs) - at) < Math.abs(x(best.startMs) - at) ? point : best), null);
    if (!near) return;
    cursor.setAttribute("d", `M${x(near.startMs)} ${TOP}V${HEIGHT - BOTTOM}`);
    now.textContent = `${minute(near.startMs).slice(5)}: ${LINES.map(([key, label]) => `${label} ${milliseconds(near[key])}`).join(", ")}`;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.removeAttribute("d");
    now.textContent = words;
  });
  const caption = element("figcaption", "", element("b", "", nameElement(stage.stage), " · ", nameElement(stage.cluster)), now);
  return element("figure", "", caption, svg);
}

function table(stages) {
  const rows = stages.flatMap((stage) => stage.points.map((point) => ({ stage, point })))
    .sort((left, right) => right.point.startMs - left.point.startMs);
  const head = element("tr", "", ...["Window (UTC)", "Stage", "Cluster"].map((text) => element("th", "", text)), ...["Records", "p50", "p95", "p99"].map((text) => element("th", "number", text)));
  const body = rows.slice(0, TABLE_ROWS).map(({ stage, point }) => element(
    "tr", "", element("td", "moment", minute(point.startMs)), element("td", "", nameElement(stage.stage)), element("td", "", nameElement(stage.cluster)),
    element("td", "number", count(point.records)), ...LINES.map(([key]) => element("td", "number", milliseconds(point[key]))),
  ));
  const caption = element("caption", "small", rows.length > TABLE_ROWS ? `The newest ${TABLE_ROWS} of ${count(rows.length)} windows` : "All windows, the newest first");
  return element("table", "", caption, element("thead", "", head), element("tbody", "", ...body));
}

/** The section of one topic's latency. It asks again every half minute, and says so when it cannot. */
export class LatencySection {
  constructor() {
    this.topic = null;
    this.names = [];
    this.answeredAt = null;
    this.turn = 0;
    by("latency-topic").addEventListener("change", (event) => this.choose(event.target.value));
    by("latency-topic").addEventListener("input", (event) => this.offer(event.target.value));
    setInterval(() => document.hidden || this.refresh(), EVERY_MS);
  }

  /** Takes the names that the field offers. The first one is shown until another is chosen. */
  know(names) {
    this.names = names;
    if (this.topic === null && names.length) this.choose(names[0]);
  }

  offer(text) {
    const wanted = text.toLowerCase();
    const found = this.names.filter((name) => name.toLowerCase().includes(wanted)).slice(0, MAX_NAMES);
    by("latency-names").replaceChildren(...found.map((name) => Object.assign(element("option", ""), { value: name })));
  }

  choose(topic) {
    if (!topic || topic === this.topic) return;
    this.topic = topic;
    by("latency-topic").value = topic;
    by("latency-charts").replaceChildren();
    by("latency-table").replaceChildren();
    this.say("waiting for the answer");
    this.refresh();
  }

  say(text, isBad = false) {
    by("latency-note").textContent = sentence(text);
    by("latency-note").classList.toggle("bad-text", isBad);
    by("latency-body").classList.toggle("old", isBad);
  }

  async refresh() {
    if (this.topic === null || by("latency-charts").matches(":hover")) return;
    const topic = this.topic, turn = ++this.turn;
    try {
      const { document: answer } = await ask(`v1/latency?topic=${encodeURIComponent(topic)}`);
      const stages = readLatency(answer);
      if (turn === this.turn) this.show(stages);
    } catch (error) {
      if (turn === this.turn) this.say(`The latency is not known: ${error.message}`, true);
    }
  }

  show(all) {
    const stages = all.filter((stage) => stage.points.length);
    this.say(stages.length ? "" : "No latency was counted for this topic in the last 24 hours.");
    let [from, to] = [Infinity, -Infinity];
    for (const { points } of stages) [from, to] = [Math.min(from, points[0].startMs), Math.max(to, points[points.length - 1].startMs)];
    const scale = decades(stages);
    by("latency-charts").replaceChildren(...stages.map((stage) => chart(stage, [from, to], scale)));
    by("latency-table").replaceChildren(...(stages.length ? [table(stages)] : []));
    by("latency-details").hidden = by("latency-legend").hidden = !stages.length;
  }
}
