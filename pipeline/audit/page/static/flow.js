// The flow of records through datacenters and tiers: a card for each stage, lines between them, rates, differences.

import { STATUSES, UNKNOWN } from "./statuses.js";
import { brief, bytes, count, counted, duration, element, nameElement, rate, shape } from "./text.js";

const RATE_OVER_MS = 60_000;
const MAX_SAMPLES = 40;
const MAX_CARDS = 12;
/** Columns of the picture, from left to right, with what they are called. */
const COLUMNS = [
  ["produced", "Producers"], ["live", "Live brokers"], ["mirrored", "Mirror"], ["replica", "Replica brokers"],
  ["loaded", "Loads"], ["stored", "Files read back"], ["consumed", "Groups"],
];
const by = (id) => document.getElementById(id);
const keyOf = ({ cluster, stage }) => JSON.stringify([cluster, stage]);

/** Rates of growth of cumulative counts. Times are the service's. */
export class Rates {
  constructor() {
    this.samples = new Map();
  }

  /** Notes the counts of all stages; stages that are gone are forgotten. */
  note(flow) {
    const present = new Map();
    for (const stage of flow.stages) {
      const key = keyOf(stage), before = this.samples.get(key) ?? [];
      const last = before[before.length - 1];
      const sample = { atMs: flow.auditMs, records: stage.records, bytes: stage.bytes };
      // Fewer than before: committed records were lost, or counts forgotten. There is no rate over such a step.
      const isFresh = last && (sample.records < last.records || sample.bytes < last.bytes || sample.atMs < last.atMs);
      const kept = isFresh ? [] : before.filter((each) => sample.atMs - each.atMs <= RATE_OVER_MS && each.atMs < sample.atMs);
      present.set(key, [...kept.slice(-MAX_SAMPLES), sample]);
    }
    this.samples = present;
  }

  /** Returns { records, bytes } per second of a stage; null while there is one answer alone. */
  of(stage) {
    const samples = this.samples.get(keyOf(stage)) ?? [];
    if (samples.length < 2) return null;
    const first = samples[0], last = samples[samples.length - 1], seconds = (last.atMs - first.atMs) / 1000;
    return { records: (last.records - first.records) / seconds, bytes: (last.bytes - first.bytes) / seconds };
  }
}

/** Stages before one, the first of which that counted is compared with it. */
const BEFORE = { live: ["produced"], mirrored: ["live"], replica: ["live"], loaded: ["replica", "live"], consumed: ["replica", "live"], stored: ["loaded"] };

/** Returns the edges of a document, and those between stages that counted of which there is no finding. */
function allEdges(flow) {
  const keyOfEdge = ({ after, at, cluster }) => JSON.stringify([after, at, cluster]);
  const found = [...flow.edges], known = new Set(found.map(keyOfEdge));
  const sources = new Set(flow.stages.filter(({ tier }) => tier === "produced" || tier === "live").map(({ cluster }) => cluster));
  for (const stage of flow.stages) {
    const tier = (BEFORE[stage.tier] ?? []).find((each) => flow.stages.some((other) => other.tier === each && (each !== "produced" || other.cluster === stage.cluster)));
    if (!tier) continue;
    const after = tier === "loaded" && stage.name ? `loaded:${stage.name}` : tier;
    const clusters = sources.has(stage.cluster) ? [stage.cluster] : sources;
    for (const cluster of clusters) {
      const edge = { after, at: stage.stage, cluster, hours: STATUSES.map(() => 0), missing: 0, extra: 0, pending: 0, changed: 0, isSilent: true };
      if (!known.has(keyOfEdge(edge))) found.push(edge);
    }
  }
  return found;
}

const worstOf = (edge) => edge.hours.reduce((worst, number, rank) => (number ? rank : worst), 0);

/** Returns the words about an edge, the worst first. */
function edgeWords(edge) {
  const words = [];
  if (edge.missing) words.push([`${count(edge.missing)} missing`, 9]);
  if (edge.extra) words.push([`${count(edge.extra)} extra`, 8]);
  if (edge.changed) words.push([`${counted(edge.changed, "partition")} changed`, 7]);
  const worst = worstOf(edge);
  if (worst > UNKNOWN && !words.length) words.push([`${counted(edge.hours[worst], "hour")} ${STATUSES[worst].name}`, worst]);
  if (edge.hours[UNKNOWN]) words.push([`${count(edge.hours[UNKNOWN])} unknown`, UNKNOWN]);
  if (edge.pending) words.push([`${count(edge.pending)} under way`, 5]);
  for (const rank of [4, 3, 2]) if (edge.hours[rank]) words.push([`${count(edge.hours[rank])} ${STATUSES[rank].name}`, rank]);
  if (edge.isSilent) return [["no finding", 0]];
  if (!words.length) words.push(worst === 0 ? ["no finding", 0] : worst === 1 ? ["equal", 1] : ["not over yet", worst]);
  return words;
}

function edgeStrip(edge, hasManyClusters) {
  const from = element("span", "edge-from", "from ", nameElement(edge.after), ...(hasManyClusters ? [", ", nameElement(edge.cluster)] : []));
  const words = edgeWords(edge).map(([word, rank]) => {
    const swatch = element("span", `swatch s${rank}`, STATUSES[rank].letter === "-" ? "−" : STATUSES[rank].letter);
    swatch.setAttribute("aria-hidden", "true");
    return element("span", "edge-word", swatch, word);
  });
  return element("div", "edge", from, ...words);
}

function card(stage, rates, edges, nowMs, hasManyClusters) {
  const growth = rates.of(stage);
  const made = element("article", "card");
  made.dataset.stage = stage.stage;
  made.dataset.cluster = stage.cluster;
  const title = element("h4", "", nameElement(stage.cluster));
  if (stage.name) title.append(" ", element("span", "of", nameElement(stage.name)));
  made.append(...edges.map((edge) => edgeStrip(edge, hasManyClusters)), title);
  const speed = growth ? [element("b", "", rate(growth.records)), ` records/s, ${bytes(growth.bytes)}/s`] : ["rate: not known yet"];
  made.append(element("p", "live-rate", ...speed));
  const age = stage.countedMs === null ? null : (nowMs - Number(stage.countedMs)) / 1000;
  const reported = age === null ? "never counted" : age < -1 ? "counted at a time to come" : `${duration(Math.max(0, Math.floor(age)))} ago`;
  const total = element("p", "small", `${brief(stage.records)} records of ${counted(stage.topics, "topic")}, ${reported}`);
  total.title = `${count(stage.records)} records, ${bytes(stage.bytes)} in all hours; the newest report is ${reported}`;
  made.append(total);
  made.dataset.worst = String(Math.max(0, ...edges.map(worstOf)));
  return made;
}

/** Edges without a card: a stage that never reported, of which the edge is all that is known. */
function absentCard(edge, hasManyClusters) {
  const made = element("article", "card absent", edgeStrip(edge, hasManyClusters), element("h4", "", nameElement(edge.at)), element("p", "small", "has not counted"));
  made.dataset.stage = edge.at;
  made.dataset.worst = String(worstOf(edge));
  return made;
}

function cardsOf(tier, flow, edges, rates, hasManyClusters) {
  const stages = flow.stages.filter((stage) => stage.tier === tier);
  const has = (at, cluster) => stages.some((stage) => stage.stage === at && stage.cluster === cluster);
  const edgesOf = (stage) => edges.filter((edge) => edge.at === stage.stage && (edge.cluster === stage.cluster || !has(edge.at, edge.cluster)));
  const cards = stages.map((stage) => ({ edges: edgesOf(stage), stage }));
  const known = new Set(cards.flatMap((each) => each.edges));
  const absent = edges.filter((edge) => edge.at.split(":")[0] === tier && !known.has(edge));
  const weight = (each) => Math.max(0, ...each.edges.map(worstOf));
  cards.sort((left, right) => weight(right) - weight(left));
  return { cards: cards.map((each) => card(each.stage, rates, each.edges, flow.auditMs, hasManyClusters)), absent: absent.map((edge) => absentCard(edge, hasManyClusters)) };
}

/** Shows the flow, in columns by tier; on narrow screens one below the other. */
export function showFlow(flow, rates) {
  const edges = allEdges(flow);
  const hasManyClusters = new Set(edges.map((edge) => edge.cluster)).size > 1;
  const columns = COLUMNS.map(([tier, title]) => {
    const { cards, absent } = cardsOf(tier, flow, edges, rates, hasManyClusters);
    const all = [...cards, ...absent];
    if (!all.length) return null;
    const column = element("section", "tier", element("h3", "", title), ...all.slice(0, MAX_CARDS));
    if (all.length > MAX_CARDS) column.append(element("p", "small", `${count(all.length - MAX_CARDS)} more, without worse differences`));
    column.dataset.tier = tier;
    return column;
  }).filter(Boolean);
  by("flow").replaceChildren(...columns);
  by("flow-note").textContent = columns.length ? "" : "No tier has counted anything yet: see docs/audit.md for what turns counting on.";
  drawLines(flow);
}

/** Draws a line for each edge between the cards that it joins, in the colours of its worst status. */
export function drawLines(flow) {
  const root = by("flow");
  root.querySelector("svg")?.remove();
  if (!flow || getComputedStyle(root).flexDirection === "column" || root.scrollWidth > root.clientWidth + 1) root.classList.add("no-lines");
  else root.classList.remove("no-lines");
  if (root.classList.contains("no-lines")) return;
  const box = root.getBoundingClientRect();
  const find = (stage, cluster) => { // for a stage that counts for all clusters, its only card
    const cards = [...root.querySelectorAll(".card")].filter((each) => each.dataset.stage === stage);
    return cards.find((each) => each.dataset.cluster === cluster) ?? cards[0];
  };
  const svg = shape("svg", { class: "lines", width: box.width, height: box.height, "aria-hidden": "true" });
  for (const edge of allEdges(flow)) {
    const from = find(edge.after, edge.cluster)?.getBoundingClientRect(), to = find(edge.at, edge.cluster)?.getBoundingClientRect();
    if (!from || !to || to.left < from.right) continue;
    const [x1, y1, x2, y2] = [from.right - box.left, from.top + 26 - box.top, to.left - box.left - 1, to.top + 14 - box.top];
    const bend = Math.min(40, (x2 - x1) / 2);
    svg.append(shape("path", { class: `line s${worstOf(edge)}`, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 6} ${y2}` }));
    svg.append(shape("path", { class: `head s${worstOf(edge)}`, d: `M${x2} ${y2}l-8 -4.5v9z` }));
  }
  root.prepend(svg);
}
