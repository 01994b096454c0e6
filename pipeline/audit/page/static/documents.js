// The service's documents in the page's form. Pure. A document of another form raises an error: nothing is guessed, and
// a missing number is no 0.

import { StatusGrid } from "./status_grid.js";
import { STATUSES, UNKNOWN, isTrouble, rankOfCode } from "./statuses.js";

const MAX_HOURS = 24 * 366;

function check(isRight, what) {
  if (!isRight) throw new Error(`the answer has another form than expected: ${what}`);
}

const list = (value, what) => (check(Array.isArray(value), what), value);
const text = (value, what) => (check(typeof value === "string", what), value);
const whole = (value, what) => (check(typeof value === "bigint" || Number.isFinite(value), what), value);
const maybe = (value, read, what) => (value === null || value === undefined ? null : read(value, what));
/** Returns a watermark; times before 1970 stand for hours that are too old to be told apart. */
const readComplete = (value) => {
  const ms = maybe(value, whole, "complete_ms");
  return ms === null || ms < 0 ? null : ms;
};
const entries = (value, what) => (check(value !== null && typeof value === "object" && !Array.isArray(value), what), Object.entries(value));

/** Returns numbers by rank of an object of numbers by letter. */
function byRank(counts, what) {
  const found = new Array(STATUSES.length).fill(0);
  for (const [letter, number] of entries(counts, what)) found[letter.length === 1 ? rankOfCode(letter.charCodeAt(0)) : UNKNOWN] += Number(whole(number, what));
  return found;
}

const readWitness = (each) => ({
  name: text(each.name, "name of a witness"), reason: text(each.reason, "reason of a witness"),
  cluster: maybe(each.cluster, text, "cluster of a witness"), partition: maybe(each.partition, text, "partition of a witness"),
});

const readClusters = (clusters) => entries(clusters, "clusters").map(([name, state]) => ({
  name, lag: maybe(state.lag, whole, "lag"), isComplete: state.complete === true,
  unreadable: Number(state.unreadable || 0), error: maybe(state.error, text, "error of a cluster"),
  readToMs: state.read_to ? Date.parse(state.read_to) : null,
}));

/** Returns by rank the names of topics that have hours of it, for the ranks that need a person. */
function troubledTopics(grid, names, details) {
  const found = STATUSES.map(() => []);
  names.forEach((name, topic) => {
    const own = details.get(name).outside.slice();
    for (let at = topic * grid.hours, end = at + grid.hours; at < end; at++) own[grid.cells[at]]++;
    own.forEach((number, rank) => number && isTrouble(rank) && found[rank].push(name));
  });
  return found;
}

/** Returns the form of `/v1/status`. */
export function readStatus(document, auditMs) {
  const hours = Number(whole(document.hours, "hours"));
  check(hours >= 0 && hours <= MAX_HOURS && document.hour_ms === 3_600_000, "hours");
  const topics = list(document.topics, "topics");
  const rows = topics.map((each) => {
    const start = Number(whole(each.start, "start"));
    check(start >= 0 && start <= hours, "start");
    return { letters: text(each.letters, "letters"), start };
  });
  const names = topics.map((each) => text(each.topic, "topic"));
  const outside = new Array(STATUSES.length).fill(0);
  const details = new Map();
  topics.forEach((each, topic) => {
    const own = byRank(each.outside ?? {}, "outside");
    own.forEach((number, rank) => (outside[rank] += number));
    details.set(names[topic], {
      outside: own, completeMs: readComplete(each.complete_ms), waitsFor: maybe(each.waits_for, text, "waits_for") ?? "",
    });
  });
  const grid = new StatusGrid(names, Number(whole(document.from_ms, "from_ms")), hours, rows);
  const watermarks = new Map([...details].map(([name, { completeMs }]) => [name, completeMs === null ? null : Number(completeMs)]));
  return {
    verdict: text(document.verdict, "verdict"),
    grid,
    troubled: troubledTopics(grid, names, details),
    counts: byRank(document.counts, "counts"),
    outside, details, watermarks,
    leftOut: Number(document.topics_left_out ?? 0),
    unknown: list(document.unknown, "unknown").map(readWitness),
    clusters: readClusters(document.clusters),
    auditMs,
  };
}

/** Returns the form of `/v1/flow`. */
export function readFlow(document, auditMs) {
  return {
    verdict: text(document.verdict, "verdict"),
    stages: list(document.stages, "stages").map((each) => ({
      stage: text(each.stage, "stage"), tier: text(each.tier, "tier"), name: text(each.name, "name"), cluster: text(each.cluster, "cluster"),
      records: Number(whole(each.records, "records")), bytes: Number(whole(each.bytes, "bytes")), topics: Number(whole(each.topics, "topics")),
      countedMs: maybe(each.counted_ms, whole, "counted_ms"),
    })),
    edges: list(document.edges, "edges").map((each) => ({
      after: text(each.after, "after"), at: text(each.at, "at"), cluster: text(each.cluster, "cluster"),
      hours: byRank(each.hours, "hours of an edge"),
      missing: whole(each.missing_records, "missing_records"), extra: whole(each.extra_records, "extra_records"),
      pending: whole(each.pending_records, "pending_records"), changed: whole(each.changed_partitions, "changed_partitions"),
    })),
    watermarks: list(document.watermarks, "watermarks").map((each) => ({
      topic: text(each.topic, "topic"), completeMs: readComplete(each.complete_ms), waitsFor: text(each.waits_for, "waits_for"),
    })),
    watermarksLeftOut: Number(document.watermarks_left_out ?? 0),
    clusters: readClusters(document.clusters),
    auditMs,
  };
}

const readStages = (stages) => entries(stages, "stages").map(([stage, counts]) => ({
  stage, records: whole(counts.records, "records"), bytes: whole(counts.bytes, "bytes"), batches: whole(counts.batches, "batches"),
  first: maybe(counts.first_offset, whole, "first_offset"), last: maybe(counts.last_offset, whole, "last_offset"),
}));

/** Returns a finding. */
export const readFinding = (each) => ({
  cluster: text(each.cluster, "cluster"), source: text(each.source, "source"), replica: maybe(each.replica, text, "replica"),
  after: text(each.after, "after"), at: text(each.at, "at"), status: text(each.status, "status"), kind: maybe(each.kind, text, "kind"),
  records: whole(each.records, "records"), offsets: maybe(each.offsets, list, "offsets"),
  explanation: maybe(each.explanation, text, "explanation"),
  witness: each.witness && typeof each.witness === "object" ? readWitness(each.witness) : null,
  text: text(each.text, "text"),
});

/** Returns the form of `/v1/hours/{topic}/{hour}`. */
export const readHour = (document) => ({
  status: text(document.status, "status"), kind: maybe(document.kind, text, "kind"),
  restsOn: list(document.rests_on, "rests_on").map((each) => text(each, "rests_on")),
  missingWitnesses: list(document.missing_witnesses, "missing_witnesses").map(readWitness),
  stages: readStages(document.stages),
  partitions: list(document.partitions, "partitions").map((each) => ({
    cluster: text(each.cluster, "cluster"), source: text(each.source, "source"), replica: maybe(each.replica, text, "replica"),
    status: text(each.status, "status"), stages: readStages(each.stages), findings: list(each.findings, "findings").map(readFinding),
  })),
  inAll: Number(whole(document.partitions_in_all, "partitions_in_all")),
});

/** Returns the form of `/v1/explain/{topic}/{hour}`. */
export const readStory = (document) => ({
  sentences: list(document.sentences, "sentences").map((each) => text(each, "sentence")),
  findings: list(document.findings, "findings").map(readFinding),
  isNarrowed: document.is_narrowed === true,
  narrowingError: maybe(document.narrowing_error, text, "narrowing_error"),
});

/** Returns the form of `/v1/latency`. Points are in the order of their time. */
export const readLatency = (document) =>
  list(document.stages, "stages").map((each) => ({
    stage: text(each.stage, "stage"), cluster: text(each.cluster, "cluster"),
    points: list(each.points, "points").map((point) => ({
      startMs: Number(whole(point.start_ms, "start_ms")), records: Number(whole(point.records, "records")),
      p50: Number(whole(point.p50_ms, "p50_ms")), p95: Number(whole(point.p95_ms, "p95_ms")), p99: Number(whole(point.p99_ms, "p99_ms")),
    })).sort((left, right) => left.startMs - right.startMs),
  }));

/** Returns what the whole stands for: one of bad, unknown, explained, waiting, exact, empty. The worst holds. */
export function standing(status) {
  const all = status.counts.map((number, rank) => number + status.outside[rank]);
  const has = (test) => all.some((number, rank) => number > 0 && test(rank));
  if (has((rank) => rank > UNKNOWN)) return "bad";
  const isHeard = status.unknown.length === 0 && status.clusters.every((cluster) => cluster.isComplete && !cluster.error);
  if (has(isTrouble) || !isHeard || status.leftOut > 0) return "unknown";
  if (has((rank) => ["recompressed", "explained", "quarantined"].includes(STATUSES[rank].name))) return "explained";
  if (status.verdict === "difference") return "bad"; // whatever it is that the letters do not show
  if (has((rank) => STATUSES[rank].name === "pending")) return "waiting";
  if (!has((rank) => rank > 0)) return "empty";
  return status.verdict === "exact" ? "exact" : "unknown";
}
