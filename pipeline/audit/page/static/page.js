// The page of the audit. Asks the service every few seconds. An answer that does not come, or that is old, is said in the
// headline, and all that is shown is grey until the next good answer.

import { Source } from "./contact.js";
import { Details, hashOf, placeOf } from "./details.js";
import { readFlow, readStatus, standing } from "./documents.js";
import { Rates, drawLines, showFlow } from "./flow.js";
import { HeatMap } from "./heat_map.js";
import { LatencySection } from "./latency.js";
import { STATUSES, TROUBLES, UNKNOWN } from "./statuses.js";
import { count, counted, duration, element, localTime, minute, sentence, sentenceNode, shortName } from "./text.js";
import { joinTheme } from "./theme.js";
import { showWatermarks } from "./watermarks.js";

const MAX_REASONS = 8;
const HIDDEN_MS = 150_000;
const NAMES_SHOWN = 3;
const SLOW_READ_MS = 120_000;
const TITLE = "Audit";
const by = (id) => document.getElementById(id);

joinTheme(by("theme"), () => { // before anything is painted
  heatMap.picture.readColors();
  drawLines(flow.value);
});

const rates = new Rates();
const latency = new LatencySection();
const details = new Details(() => {
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
});
const heatMap = new HeatMap({
  open: (topic, hourMs) => (location.hash = hashOf(topic, hourMs)),
  choose: (topic) => latency.choose(topic),
});

const status = new Source("v1/status", {
  everyMs: 8_000, oldAfterMs: 25_000, read: readStatus,
  onChange: (isNew) => {
    if (isNew) {
      by("figures").hidden = false;
      heatMap.update(status.value);
      latency.know(status.value.grid.topics);
    }
    showVerdict();
  },
});
const flow = new Source("v1/flow", {
  everyMs: 3_000, oldAfterMs: 15_000, read: readFlow,
  onChange: (isNew) => {
    if (flow.value && !flow.failure) {
      flow.value.auditMs = flow.auditMs; // also of an answer without news: ages and rates go on
      rates.note(flow.value);
      showFlow(flow.value, rates);
      if (isNew) showWatermarks(flow.value, (topic) => latency.choose(topic));
    }
    showVerdict();
  },
});

function namesText(names) {
  if (!names.length) return "";
  const more = names.length > NAMES_SHOWN ? ` and ${counted(names.length - NAMES_SHOWN, "other topic")}` : "";
  return ` of ${names.slice(0, NAMES_SHOWN).map(shortName).join(", ")}${more}`;
}

/** Returns what an operator must know, the worst first. */
function reasonsOf(value) {
  const found = [];
  const all = value.counts.map((number, rank) => number + value.outside[rank]);
  for (let rank = STATUSES.length - 1; rank >= UNKNOWN; rank--) {
    if (all[rank]) found.push(`${TROUBLES[rank]} in ${counted(all[rank], "hour")}${namesText(value.troubled[rank])}`);
  }
  for (const cluster of value.clusters) {
    if (cluster.error) found.push(`cluster ${cluster.name} cannot be read: ${cluster.error}`);
    else if (!cluster.isComplete) found.push(`cluster ${cluster.name} is not read to its end yet${cluster.lag === null ? "" : `: ${counted(cluster.lag, "event")} to go`}`);
    if (cluster.readToMs !== null && value.auditMs - cluster.readToMs > SLOW_READ_MS) {
      found.push(`events of ${cluster.name} are read up to ${minute(cluster.readToMs)} UTC alone`);
    }
    if (cluster.unreadable) found.push(`${counted(cluster.unreadable, "event")} of ${cluster.name} cannot be read by this version`);
  }
  for (const witness of value.unknown) found.push(`${witness.name}: ${witness.reason}${witness.cluster === null ? "" : ` (${witness.cluster})`}`);
  if (value.leftOut) found.push(`${counted(value.leftOut, "topic")} cannot be shown on this page`);
  return found;
}

function headlineOf(value, state) {
  const all = value.counts.map((number, rank) => number + value.outside[rank]);
  const topics = counted(value.grid.topics.length + value.leftOut, "topic");
  const differing = all.slice(UNKNOWN + 1).reduce((sum, number) => sum + number, 0);
  const troubled = new Set(value.troubled.slice(UNKNOWN + 1).flat()).size;
  switch (state) {
    case "bad": return differing ? `Records differ in ${counted(differing, "hour")}${troubled ? ` of ${counted(troubled, "topic")}` : ""}` : "The audit has found a difference";
    case "unknown": return "It is not known whether all records have arrived";
    case "explained": return `Every difference is explained, of ${topics}`;
    case "waiting": return `No difference in ${topics}; what is newest is still on its way`;
    case "exact": return `All records of ${topics} have arrived, exactly`;
    default: return "Nothing has been counted yet";
  }
}

/** Marks the sections of a source that does not answer. */
function markOld(source, ...ids) {
  const isOld = source.isOld || source.problem !== "";
  for (const id of ids) by(id).classList.toggle("old", isOld);
  return isOld;
}

const agoText = (ms) => `${duration(Math.floor(ms / 1000))} ago`;

function showSilence() {
  const { ageMs } = status;
  by("verdict").className = "silent";
  by("headline").textContent = ageMs === null ? "The audit does not answer" : `The audit does not answer since ${localTime(Date.now() - ageMs)}`;
  const old = ageMs === null ? "" : `All below is as of ${agoText(ageMs)}; the present state is unknown. Reason: `;
  by("contact").replaceChildren(sentenceNode(`${old}${status.problem}`));
  by("reasons").replaceChildren();
  document.title = `No answer – ${TITLE}`;
}

/** Shows the verdict, and how old it is. Called also while nothing answers. */
function showVerdict() {
  // Browsers wake hidden pages once a minute: nobody looks, and the title must not cry wolf.
  if (document.hidden && !status.failure && status.ageMs !== null && status.ageMs < HIDDEN_MS) return;
  const isSilent = markOld(status, "hours-section");
  const isFlowOld = markOld(flow, "flow-section", "watermark-section");
  const flowAge = flow.ageMs === null ? "" : `, as of ${agoText(flow.ageMs)}`;
  by("flow-age").textContent = isFlowOld ? sentence(`not fresh${flowAge}: ${flow.problem}`) : "";
  document.body.classList.toggle("silent", isSilent);
  if (isSilent) return showSilence();
  if (status.value === null) return; // still waiting
  const state = standing(status.value), reasons = reasonsOf(status.value);
  if (isFlowOld) reasons.push(`the flow is not fresh: ${flow.problem}`);
  by("verdict").className = isFlowOld && ["exact", "waiting", "explained"].includes(state) ? "unknown" : state;
  const headline = headlineOf(status.value, state);
  if (by("headline").textContent !== headline) by("headline").textContent = headline;
  by("contact").textContent = `As of ${minute(status.auditMs)} UTC, ${agoText(status.ageMs)}`;
  const shown = reasons.slice(0, MAX_REASONS).map((reason) => element("li", "", sentenceNode(reason)));
  if (reasons.length > MAX_REASONS) shown.push(element("li", "", `and ${count(reasons.length - MAX_REASONS)} more: pipeline audit report tells them`));
  by("reasons").replaceChildren(...shown);
  document.title = state === "exact" ? `Exact – ${TITLE}` : state === "bad" ? `Differences – ${TITLE}` : TITLE;
}

function followAddress() {
  const place = placeOf(location.hash);
  if (place) details.open(place.topic, place.hourMs);
  else if (details.dialog.open) details.dialog.close();
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || details.dialog.open || event.target.closest?.("input, select, textarea")) return;
  event.preventDefault();
  by("name-filter").focus();
});
new ResizeObserver(() => flow.value && drawLines(flow.value)).observe(by("flow"));
addEventListener("hashchange", followAddress);
setInterval(showVerdict, 1000); // ages grow, also while a request hangs or the machine slept
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  showVerdict();
  status.refresh();
  flow.refresh();
});
status.run();
flow.run();
followAddress();
