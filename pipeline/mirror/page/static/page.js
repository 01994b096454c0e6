// The status page. Asks the mirror every few seconds; what it shows is marked as old once the mirror stops answering.

import { chart } from "./chart.js";
import { bytes, count, counted, dateAndTime, duration, element, printable, shellWord, time } from "./text.js";

const STATUS_EVERY_MS = 2000;
const HISTORY_EVERY_MS = 10000;
const ANSWER_WITHIN_MS = 5000;
const STALE_AFTER_MS = 8000;
const MAX_FLOWS = 50;
const MAX_REASONS = 12;
const WELL = new Set(["copying", "caught_up", "elsewhere", "paused"]);

const by = (id) => document.getElementById(id);
const choice = { measure: "seconds", period: "hour" };
/** The last answers, and the time (Date.now) of the last status. */
const last = { status: null, history: null, gaps: null, at: null, failed: null };

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS), cache: "no-store" });
  if (!response.ok) throw new Error(`${path}: HTTP status ${response.status}`);
  return response.json();
}

const unknownText = (text) => element("span", "bad-text", text);
const isWell = (flow) => !flow.unknown_lags && !troubledOf(flow.states) && flow.remarks.every((remark) => remark.is_copied);
const troubledOf = (states) => Object.entries(states).reduce((sum, [state, number]) => sum + (WELL.has(state) ? 0 : number), 0);

/** Returns a lag, or "unknown" with the least that it can be. */
function lagCell(flow, value, least, format) {
  const cell = element("td", "number");
  if (value !== null) cell.append(format(value));
  else if (!flow.partitions) cell.append(element("span", "count", "–"));
  else {
    cell.append(unknownText("unknown"));
    if (least) cell.append(element("span", "small", `at least ${format(least)}`));
  }
  return cell;
}

function lastErrorCell(flow) {
  const cell = element("td", "text");
  for (const remark of flow.remarks.filter((each) => !each.is_copied).slice(0, 3)) {
    cell.append(element("div", "", unknownText("not copied: "), `${remark.topic}: ${remark.remark}`));
  }
  if (flow.last_error) {
    const { partition, error, age_seconds, advice } = flow.last_error;
    cell.append(element("div", "", `${partition}, ${duration(age_seconds)} ago: ${error}`), element("span", "small", advice));
  }
  return cell;
}

function flowRow(flow) {
  const troubled = troubledOf(flow.states);
  const partitions = element("td", "number", count(flow.partitions));
  if (troubled) partitions.append(element("span", "small bad-text", `${count(troubled)} with trouble`));
  if (flow.states.paused) partitions.append(element("span", "small", `${count(flow.states.paused)} paused`));
  const rate = element("td", "number", `${bytes(flow.bytes_per_second)}/s`, element("span", "small", `${count(flow.offsets_per_second)} records/s`));
  if (flow.throttle_bytes_per_second) {
    rate.append(element("span", "small", `${flow.is_throttled ? "waits for" : "below"} its bound of ${bytes(flow.throttle_bytes_per_second)}/s`));
  } else if (flow.is_throttled) rate.append(element("span", "small", "waits for the mirror's bound"));
  return element(
    "tr", "",
    element("td", "name", flow.name),
    element("td", "", flow.source),
    partitions,
    lagCell(flow, flow.lag_seconds, flow.least_lag.seconds, duration),
    lagCell(flow, flow.lag, flow.least_lag.offsets, count),
    lagCell(flow, flow.lag_bytes, flow.least_lag.bytes, bytes),
    rate,
    lastErrorCell(flow),
  );
}

function sourceRow(source) {
  const state = source.up ? element("span", "well-text", "up") : unknownText("not answering");
  const error = source.error ? `${source.error} (for ${duration(source.error_age_seconds)})` : "";
  const number = Object.values(source.states).reduce((sum, each) => sum + each, 0);
  const states = Object.entries(source.states).filter((entry) => entry[1]).map(([name, each]) => `${count(each)} ${name.replace("_", " ")}`);
  const answered = source.answer_age_seconds === null ? "never" : `${duration(source.answer_age_seconds)} ago`;
  const groups = source.groups && source.groups.error ? `offsets of groups: ${source.groups.error}` : "";
  return element(
    "tr", "",
    element("td", "name", source.name),
    element("td", "", state),
    element("td", "number", answered),
    element("td", "number", count(number), element("span", "small", states.join(", "))),
    element("td", "number", source.unknown_lags ? unknownText(count(source.unknown_lags)) : "0"),
    element("td", "text", error, element("span", "small", groups)),
  );
}

function resumeCommand(source, partition) {
  const mirror = location.origin + location.pathname.replace(/\/$/, "");
  const name = shellWord(`${partition.topic}-${partition.partition}`);
  return `pipeline mirror resume --mirror ${shellWord(mirror)} --source ${shellWord(source)} --skip ${name}`;
}

function troubledRow(source, partition) {
  const what = element("td", "text");
  what.append(element("div", "", partition.error || "the lag is unknown"));
  if (partition.halt) {
    const { first, last: end, reason } = partition.halt;
    const gap = end === null
      ? `The replica would lack what the old topic had from offset ${first} on (${reason}): an unknown number of records.`
      : `The replica would lack offsets ${first} to ${end} (${reason}): ${counted(end - first + 1, "record")} at most.`;
    what.append(element("div", "", gap), element("span", "small", "To continue behind the gap, which is recorded:"));
    what.append(element("code", "command", resumeCommand(source, partition)));
  } else if (partition.advice) what.append(element("span", "small", partition.advice));
  const replica = `${partition.replica_topic}-${partition.replica_partition}`;
  const name = element("td", "name", `${source}/${partition.topic}-${partition.partition}`);
  name.append(element("span", "small", `to ${replica}${partition.flow ? `, flow ${partition.flow}` : ""}`));
  const since = partition.last_error && partition.error === partition.last_error.error ? `for ${duration(partition.last_error.age_seconds)}` : "";
  return element("tr", "", name, element("td", "", unknownText(partition.state.replace("_", " ")), element("span", "small", since)), what);
}

function gapRow(gap) {
  return element(
    "tr", "",
    element("td", "moment", dateAndTime(gap.time_ms)),
    element("td", "name", `${gap.source}/${gap.topic}-${gap.partition}`),
    element("td", "", `${gap.replica_topic}-${gap.replica_partition}`),
    element("td", "number", String(gap.first)),
    element("td", "number", gap.last === null ? "unknown" : String(gap.last)),
    element("td", "number", gap.last === null ? "unknown" : count(gap.last - gap.first + 1)),
    element("td", "", gap.reason),
    element("td", "text", gap.detail),
  );
}

const fill = (id, rows) => by(id).querySelector("tbody").replaceChildren(...rows);
const more = (id, shown, all, noun) => (by(id).textContent = shown < all ? `${count(all - shown)} more ${noun}: see pipeline mirror status` : "");

/** Returns what an operator must know, the worst first. */
function reasonsOf(status, gaps) {
  const found = [];
  if (status.error) found.push(`the hub: ${status.error}`);
  for (const source of status.sources) {
    if (!source.up) found.push(`source ${source.name} does not answer: ${source.error || "no answer yet"}`);
    else if (source.error) found.push(`source ${source.name}: ${source.error}`);
    if (source.groups && source.groups.error) found.push(`offsets of groups of ${source.name}: ${source.groups.error}`);
  }
  for (const flow of status.flows) {
    const states = Object.entries(flow.states).filter(([state, number]) => number && !WELL.has(state));
    const parts = states.map(([state, number]) => `${count(number)} ${state.replace("_", " ")}`);
    if (flow.unknown_lags) parts.push(`${count(flow.unknown_lags)} with unknown lag`);
    if (parts.length) found.push(`flow ${flow.name}, of ${counted(flow.partitions, "partition")}: ${parts.join(", ")}`);
    for (const remark of flow.remarks) if (!remark.is_copied) found.push(`flow ${flow.name}: ${remark.topic} is ${remark.remark}`);
  }
  const settings = status.settings || {};
  if (settings.file_error) found.push(`the settings file cannot be read: ${settings.file_error}`);
  if (settings.is_of_file === false) found.push("the settings in force are not those of the settings file, which a restart would use: pipeline mirror plan shows the difference");
  if (gaps && gaps.is_read && gaps.begin > 0) found.push("the ledger of gaps has lost its first records");
  return found;
}

function showVerdict() {
  const age = last.at === null ? null : Date.now() - last.at;
  const isStale = age !== null && (age > STALE_AFTER_MS || last.failed !== null);
  document.body.classList.toggle("stale", isStale);
  if (age === null) {
    by("verdict").className = last.failed === null ? "waiting" : "stale";
    by("headline").textContent = last.failed === null ? "Waiting for the first answer of the mirror" : "The mirror does not answer";
    by("contact").textContent = last.failed === null ? "" : printable(last.failed);
    return;
  }
  const reasons = reasonsOf(last.status, last.gaps);
  if (isStale) {
    const ago = age < 1000 ? "" : ` (${duration(Math.floor(age / 1000))} ago)`;
    by("verdict").className = "stale";
    by("headline").textContent = `No answer since ${dateAndTime(last.at)}${ago}`;
    by("contact").textContent = `All below is as of then: the present state is unknown. ${printable(last.failed || "")}`;
    by("reasons").replaceChildren();
    document.title = "No answer – Mirror";
    return;
  }
  const flows = last.status.flows;
  const partitions = flows.reduce((sum, flow) => sum + flow.partitions, 0);
  const paused = flows.reduce((sum, flow) => sum + (flow.states.paused || 0), 0);
  const resting = paused ? `, ${count(paused)} paused` : "";
  const lag = Math.max(0, ...flows.map((flow) => flow.lag_seconds || 0));
  const isUnread = partitions > 0 && flows.some((flow) => flow.partitions && flow.lag_seconds === null);
  by("verdict").className = reasons.length ? "bad" : "well";
  const behind = isUnread ? "" : `; the largest lag is ${duration(lag)}`;
  by("headline").textContent = reasons.length
    ? "The mirror needs attention"
    : partitions ? `${counted(partitions - paused, "partition")} copied${resting}, without trouble${behind}` : "No trouble, and no partitions to copy";
  const shown = reasons.slice(0, MAX_REASONS).map((reason) => element("li", "", reason));
  if (reasons.length > MAX_REASONS) shown.push(element("li", "", `and ${count(reasons.length - MAX_REASONS)} more`));
  by("reasons").replaceChildren(...shown);
  by("contact").textContent = `As of ${time(last.at)}`;
  document.title = reasons.length ? `(${reasons.length}) Mirror` : "Mirror";
}

/** Returns the flows that are shown: those with trouble first. */
const shownFlows = (flows) => [...flows.filter((flow) => !isWell(flow)), ...flows.filter(isWell)].slice(0, MAX_FLOWS);

function showStatus() {
  const status = last.status;
  by("figures").hidden = false;
  const flows = shownFlows(status.flows);
  fill("flows", flows.map(flowRow));
  by("flow-count").textContent = count(status.flows.length);
  more("flows-more", flows.length, status.flows.length, "flows");
  fill("sources", status.sources.map(sourceRow));
  const rows = status.sources.flatMap((source) => source.partitions.map((partition) => troubledRow(source.name, partition)));
  if (!getSelection().toString()) fill("troubled", rows); // a command that is being copied stays
  by("troubled-section").hidden = !rows.length;
  by("troubled-count").textContent = count(status.troubled);
  more("troubled-more", rows.length, status.troubled, "partitions with trouble");
}

function showHistory() {
  if (last.history === null || by("charts").matches(":hover")) return;
  by("charts").replaceChildren(...last.history.flows.map((flow) => chart(flow, last.history, choice.measure)));
  more("charts-note", last.history.flows.length, last.history.flow_count, "flows");
}

function showGaps() {
  const gaps = last.gaps;
  by("gap-count").textContent = gaps.is_read ? count(gaps.count) : "";
  let note = gaps.is_read ? "" : "The ledger was not read yet: whether there are gaps is unknown.";
  if (gaps.is_read && !gaps.count && !gaps.begin && !gaps.skipped) note = "The ledger _mirror_gaps is empty: no records were skipped.";
  if (gaps.begin > 0) note += ` The ledger has lost its records before offset ${count(gaps.begin)}.`;
  if (gaps.skipped > 0) note += ` ${counted(gaps.skipped, "record")} of the ledger cannot be read as gaps.`;
  by("gap-note").textContent = note;
  by("gap-totals").hidden = by("gaps").hidden = !gaps.count;
  fill("gap-totals", gaps.totals.map((total) => element(
    "tr", "", element("td", "name", total.source), element("td", "", total.reason),
    element("td", "number", count(total.gaps)), element("td", "number", total.missing_at_most === null ? "unknown" : count(total.missing_at_most)),
  )));
  fill("gaps", gaps.gaps.map(gapRow));
  by("gaps-more").textContent = gaps.gaps.length < gaps.count ? `${count(gaps.count - gaps.gaps.length)} older ones: pipeline mirror gaps lists all` : "";
}

async function refreshStatus() {
  try {
    const status = await ask("v1/status?partitions=troubled");
    Object.assign(last, { status, at: Date.now(), failed: null });
    showStatus();
  } catch (error) {
    last.failed = String(error.name === "TimeoutError" ? `no answer within ${ANSWER_WITHIN_MS / 1000} s` : error.message);
  }
  showVerdict();
}

async function refreshHistory() {
  try {
    const query = new URLSearchParams({ period: choice.period });
    for (const flow of shownFlows(last.status ? last.status.flows : [])) query.append("flow", flow.name);
    const [history, gaps] = await Promise.all([ask(`v1/lag?${query}`), ask("v1/gaps")]);
    if (history.period !== choice.period) return; // another choice was made meanwhile
    Object.assign(last, { history, gaps });
    showHistory();
    showGaps();
    showVerdict();
  } catch {
    // The status, which is asked for more often, shows that the mirror does not answer.
  }
}

/** Calls a function again and again, `everyMs` after it has ended. */
async function repeat(refresh, everyMs) {
  for (;;) {
    await refresh();
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}

function choose(id, key) {
  const buttons = [...by(id).querySelectorAll("button")];
  const mark = () => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === choice[key])));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      choice[key] = button.dataset.value;
      mark();
      if (key === "period") refreshHistory();
      else showHistory();
    });
  }
  mark();
}

choose("measures", "measure");
choose("periods", "period");
setInterval(showVerdict, 1000); // the age of the last answer grows, also while a request hangs or the machine slept
document.addEventListener("visibilitychange", () => document.hidden || refreshStatus());
await refreshStatus();
repeat(refreshStatus, STATUS_EVERY_MS);
repeat(refreshHistory, HISTORY_EVERY_MS);
