// The statuses of all topics and hours as one array of ranks, and what the heat map shows of it. Pure.
//
// Invariants:
// A. A cell of several hours has the worst rank of its hours: a view never looks better than what it stands for.
// B. A letter that this page does not know is unknown, never good news.

import { NOTHING, STATUSES, isTrouble, rankOfCode } from "./statuses.js";

export const HOUR_MS = 3_600_000;
/** Hours in a cell, of which the smallest number is chosen that fits the width. */
const BUCKETS = [1, 2, 3, 4, 6, 8, 12, 24, 48, 96, 168, 336, 720];

export class StatusGrid {
  /** `rows` has for each topic `letters`, one for each hour, and the number of the first one's hour after `startMs`. */
  constructor(topics, startMs, hours, rows) {
    Object.assign(this, { topics, startMs, hours });
    this.lowerNames = null;
    this.cells = new Uint8Array(topics.length * hours);
    for (let topic = 0, at = 0; topic < topics.length; topic++, at += hours) {
      const { letters, start } = rows[topic];
      const known = Math.min(letters.length, hours - start);
      for (let hour = 0; hour < known; hour++) this.cells[at + start + hour] = rankOfCode(letters.charCodeAt(hour));
    }
  }

  get endMs() {
    return this.startMs + this.hours * HOUR_MS;
  }

  rankAt(topic, hour) {
    return this.cells[topic * this.hours + hour];
  }

  /** Returns the numbers of the topics whose names have the text, in any case. */
  named(text) {
    const wanted = text.toLowerCase();
    const all = [...this.topics.keys()];
    if (!wanted) return all;
    this.lowerNames ??= this.topics.map((name) => name.toLowerCase());
    return all.filter((topic) => this.lowerNames[topic].includes(wanted));
  }
}

/** Returns the hours per cell with which `hours` fit into `cells`. */
export const bucketFor = (hours, cells) => BUCKETS.find((bucket) => hours / bucket + 1 <= cells) ?? BUCKETS[BUCKETS.length - 1];

/** Cells of the hours from `firstHour` on, `bucket` hours in each, aligned to multiples of the bucket since 1970. */
export class GridView {
  constructor(grid, firstHour, bucket) {
    const origin = Math.floor(grid.startMs / HOUR_MS);
    const first = Math.floor((origin + firstHour) / bucket);
    this.grid = grid;
    this.firstHour = firstHour;
    this.bucket = bucket;
    this.columns = Math.max(0, Math.floor((origin + grid.hours - 1) / bucket) - first + 1);
    this.startMs = first * bucket * HOUR_MS;
    this.cells = new Uint8Array(grid.topics.length * this.columns);
    const columnOf = new Int32Array(grid.hours);
    for (let hour = firstHour; hour < grid.hours; hour++) columnOf[hour] = Math.floor((origin + hour) / bucket) - first;
    for (let topic = 0; topic < grid.topics.length; topic++) {
      const from = topic * grid.hours, to = topic * this.columns;
      for (let hour = firstHour; hour < grid.hours; hour++) {
        const rank = grid.cells[from + hour], at = to + columnOf[hour];
        if (rank > this.cells[at]) this.cells[at] = rank; // invariant A
      }
    }
  }

  rankAt(topic, column) {
    return this.cells[topic * this.columns + column];
  }

  /** Returns the first moment of a column. */
  momentOf(column) {
    return this.startMs + column * this.bucket * HOUR_MS;
  }

  columnOf(ms) {
    return Math.max(0, Math.min(this.columns - 1, Math.floor((ms - this.startMs) / (this.bucket * HOUR_MS))));
  }

  /** Returns the hours of a column, from and to, as numbers of hours of the grid. */
  hoursOf(column) {
    const from = Math.round((this.momentOf(column) - this.grid.startMs) / HOUR_MS);
    return [Math.max(this.firstHour, from), Math.min(this.grid.hours, from + this.bucket)];
  }

  /** Returns the latest hour of the worst rank in a cell. */
  worstHour(topic, column) {
    const [from, to] = this.hoursOf(column);
    let worst = Math.max(from, to - 1);
    for (let hour = to - 1; hour >= from; hour--) if (this.grid.rankAt(topic, hour) > this.grid.rankAt(topic, worst)) worst = hour;
    return worst;
  }
}

/** Returns for each topic the worst rank from `firstHour` on, and how many hours need a person. */
export function severities(grid, firstHour) {
  const worst = new Uint8Array(grid.topics.length), troubles = new Uint32Array(grid.topics.length);
  for (let topic = 0; topic < grid.topics.length; topic++) {
    for (let at = topic * grid.hours + firstHour, end = (topic + 1) * grid.hours; at < end; at++) {
      const rank = grid.cells[at];
      if (rank > worst[topic]) worst[topic] = rank;
      if (isTrouble(rank)) troubles[topic]++;
    }
  }
  return { worst, troubles };
}

/** Returns the number of cells by rank, of hours `from` to `to`. */
export function tally(grid, from, to) {
  const found = new Array(STATUSES.length).fill(0);
  for (let topic = 0; topic < grid.topics.length; topic++) {
    for (let at = topic * grid.hours + from, end = topic * grid.hours + to; at < end; at++) found[grid.cells[at]]++;
  }
  return found;
}

/** Returns the topics that are shown, in their order. `ranks`: chosen ranks, or an empty set for all. */
export function shownTopics(grid, firstHour, { name, ranks, order }) {
  const { worst, troubles } = severities(grid, firstHour);
  let shown = grid.named(name);
  if (ranks.size) {
    const has = (topic) => {
      for (let hour = firstHour; hour < grid.hours; hour++) if (ranks.has(grid.rankAt(topic, hour))) return true;
      return false;
    };
    shown = shown.filter(has);
  } else if (name === "") shown = shown.filter((topic) => worst[topic] !== NOTHING);
  if (order === "worst") {
    // Pending is normal for the newest hour: it orders nothing.
    const weight = (topic) => (isTrouble(worst[topic]) ? worst[topic] : 0);
    shown.sort((left, right) => weight(right) - weight(left) || troubles[right] - troubles[left] || left - right);
  }
  return shown;
}
