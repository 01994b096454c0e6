// The heat map of topics and hours: filters, range, zoom, and the way through it by mouse and keyboard.

import { GridPicture, labelWidth, sizes } from "./grid_view.js";
import { GridView, HOUR_MS, bucketFor, shownTopics, tally } from "./status_grid.js";
import { NOTHING, STATUSES, isTrouble } from "./statuses.js";
import { count, counted, duration, element, minute, printable } from "./text.js";

const FILTER_AFTER_MS = 120;
const by = (id) => document.getElementById(id);

export class HeatMap {
  /** `open(topic, hourMs)` shows an hour, `choose(topic)` a topic. */
  constructor({ open, choose }) {
    Object.assign(this, { open, choose });
    this.status = null;
    this.filter = { name: "", ranks: new Set(), order: "worst" };
    this.days = 30;
    this.isFine = false;
    this.cursorTopic = null;
    this.root = by("grid");
    this.chips = this.makeChips();
    this.picture = new GridPicture(this.root, this.chips.map((chip) => chip.querySelector(".swatch")));
    this.picture.onResize = () => this.arrange();
    this.joinControls();
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.root.addEventListener("click", (event) => this.onClick(event));
    this.root.addEventListener("pointermove", (event) => this.onHover(event));
    this.root.addEventListener("pointerleave", () => this.describe());
    this.root.addEventListener("focus", () => this.describe());
  }

  makeChips() {
    const chips = STATUSES.map((status) => {
      const swatch = element("span", `swatch s${status.rank}`, status.letter === "-" ? "−" : status.letter);
      swatch.setAttribute("aria-hidden", "true");
      const chip = element("button", "chip", swatch, element("span", "", status.name), element("span", "number", ""));
      chip.type = "button";
      chip.title = status.text;
      chip.setAttribute("aria-pressed", "false");
      chip.addEventListener("click", () => {
        const { ranks } = this.filter;
        if (!ranks.delete(status.rank)) ranks.add(status.rank);
        chip.setAttribute("aria-pressed", String(ranks.has(status.rank)));
        this.arrange();
      });
      return chip;
    });
    chips[NOTHING].hidden = true;
    by("statuses").replaceChildren(...chips);
    return chips;
  }

  joinControls() {
    let timer = 0;
    by("name-filter").addEventListener("input", (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        this.filter.name = event.target.value;
        this.arrange();
      }, FILTER_AFTER_MS);
    });
    by("name-filter").addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        this.root.focus();
      }
    });
    by("order").addEventListener("change", (event) => {
      this.filter.order = event.target.value;
      this.arrange();
    });
    by("days").addEventListener("change", (event) => {
      this.days = Number(event.target.value);
      this.arrange({ toEnd: true });
    });
    by("zoom").addEventListener("click", () => this.zoom(!this.isFine));
    by("clear").addEventListener("click", () => this.clearFilters());
  }

  clearFilters() {
    this.filter.ranks.clear();
    this.filter.name = by("name-filter").value = "";
    for (const chip of this.chips) chip.setAttribute("aria-pressed", "false");
    this.arrange();
  }

  /** Takes a new status document. */
  update(status) {
    const isFirst = this.status === null;
    this.status = status;
    this.picture.watermarks = status.watermarks;
    this.arrange({ toEnd: isFirst });
  }

  get firstHour() {
    return Math.max(0, this.status.grid.hours - this.days * 24);
  }

  /** Lays out rows and columns anew. The cursor stays at its topic and moment. */
  arrange({ toEnd = false } = {}) {
    if (!this.status) return;
    this.root.hidden = false; // without topics it was, and had no width
    if (!this.root.clientWidth) return;
    const { grid } = this.status, { view: before, cursor } = this.picture;
    const momentMs = before && !toEnd && cursor.column >= 0 ? before.momentOf(cursor.column) : null;
    const { cell } = sizes();
    const room = this.root.clientWidth - labelWidth(this.root.clientWidth);
    const bucket = this.isFine ? 1 : bucketFor(grid.hours - this.firstHour, Math.max(1, Math.floor(room / cell)));
    const view = new GridView(grid, this.firstHour, bucket);
    const topics = shownTopics(grid, this.firstHour, this.filter);
    const row = Math.max(0, topics.findIndex((topic) => grid.topics[topic] === this.cursorTopic));
    const isName = before !== null && cursor.column < 0 && !toEnd;
    this.picture.cursor = { row, column: isName ? -1 : momentMs === null ? view.columns - 1 : view.columnOf(momentMs) };
    this.picture.show(view, topics, this.filter.ranks, this.isFine ? cell : Math.max(cell, Math.min(2 * cell, Math.floor((room - 2) / Math.max(1, view.columns)))));
    if (toEnd) this.root.scrollLeft = this.root.scrollWidth;
    this.showCounts(topics);
    this.describe();
  }

  showCounts(topics) {
    const { grid, leftOut } = this.status;
    const found = tally(grid, this.firstHour, grid.hours);
    for (const { rank } of STATUSES) {
      const chip = this.chips[rank];
      chip.querySelector(".number").textContent = count(found[rank]);
      chip.classList.toggle("none", !found[rank]);
    }
    const filtered = topics.length === grid.topics.length ? "" : ` of ${count(grid.topics.length)}`;
    by("shown").textContent = `${count(topics.length)}${filtered} ${topics.length === 1 && !filtered ? "topic" : "topics"}`;
    by("clear").hidden = !this.filter.name && !this.filter.ranks.size;
    const remarks = [];
    if (leftOut) remarks.push(`${counted(leftOut, "topic")} more cannot be shown: ask for a part of their names with pipeline audit report.`);
    const outside = this.outsideText();
    if (outside) remarks.push(outside);
    if (!topics.length) remarks.push(grid.topics.length ? "No topic matches the filters in this range." : "Nothing was counted in these 30 days.");
    by("grid-remarks").textContent = printable(remarks.join(" "));
    this.root.hidden = !topics.length;
    const { view } = this.picture;
    by("zoom").textContent = this.isFine ? "Whole range" : "Every hour";
    by("zoom").hidden = !this.isFine && view.bucket === 1;
    by("cell-size").textContent = view.bucket === 1 ? "A cell is one hour." : `A cell is ${view.bucket < 24 ? `${view.bucket} hours` : counted(view.bucket / 24, "day")}: the worst of them.`;
  }

  /** Returns what is not in the picture: hours before its range, and of times that nobody would expect. */
  outsideText() {
    const { outside, grid } = this.status;
    const before = tally(grid, 0, this.firstHour);
    const troubles = (found) => found.reduce((sum, number, rank) => sum + (isTrouble(rank) ? number : 0), 0);
    const parts = [];
    if (troubles(before)) parts.push(`${counted(troubles(before), "hour")} with a difference or unknown lie before these days.`);
    const all = outside.reduce((sum, number) => sum + number, 0);
    if (all) {
      const bad = troubles(outside);
      parts.push(`${counted(all, "hour")} lie before the last 30 days or in the future${bad ? `, ${count(bad)} of them with a difference or unknown` : ""}: pipeline audit report lists them.`);
    }
    return parts.join(" ");
  }

  zoom(isFine) {
    this.isFine = isFine;
    this.arrange();
    this.picture.reveal();
  }

  /** Returns the sentence about a cell: topic, time, status. */
  cellText({ row, column }) {
    const { view, topics } = this.picture;
    const topic = topics[row], name = view.grid.topics[topic];
    if (column < 0) return this.topicText(name);
    const rank = view.rankAt(topic, column), from = view.momentOf(column);
    const span = view.bucket === 1 ? minute(from) : `${minute(from)} to ${minute(from + view.bucket * HOUR_MS)}`;
    const more = view.bucket > 1 && rank ? `, the worst of ${view.bucket} hours` : "";
    return `${printable(name)} · ${span} UTC · ${STATUSES[rank].name}: ${STATUSES[rank].text}${more}`;
  }

  topicText(name) {
    const { completeMs, waitsFor } = this.status.details.get(name);
    const complete = completeMs === null ? "no hour is complete" : `complete to ${minute(Number(completeMs))} UTC`;
    return printable(`${name} · ${complete}${waitsFor ? `; waits for: ${waitsFor}` : ""}`);
  }

  /** Describes the cell at the cursor, below the grid and for screen readers. */
  describe(at = this.picture.cursor) {
    const { view, topics } = this.picture;
    if (!view || !topics.length) return void (by("cell-text").textContent = "");
    by("cell-text").textContent = this.cellText(at);
    if (at !== this.picture.cursor) return;
    this.cursorTopic = view.grid.topics[topics[at.row]];
    const rank = at.column < 0 ? 0 : view.rankAt(topics[at.row], at.column);
    this.picture.announce(printable(this.cursorTopic), at.column < 0 ? "topic" : `${minute(view.momentOf(at.column))} UTC`,
      at.column < 0 ? this.cellText(at) : `${STATUSES[rank].name}, ${minute(view.momentOf(at.column))}, ${printable(this.cursorTopic)}`);
  }

  moveTo(row, column) {
    const { view, topics, cursor } = this.picture;
    cursor.row = Math.max(0, Math.min(topics.length - 1, row));
    cursor.column = Math.max(-1, Math.min(view.columns - 1, column));
    this.picture.reveal();
    this.picture.schedule();
    this.describe();
  }

  /** Moves to the next cell that needs a person, row by row. */
  moveToTrouble(step) {
    const { view, topics, cursor } = this.picture;
    const all = topics.length * view.columns;
    const from = cursor.row * view.columns + Math.max(0, cursor.column);
    for (let distance = 1; distance <= all; distance++) {
      const at = (((from + step * distance) % all) + all) % all;
      const row = Math.floor(at / view.columns), column = at % view.columns;
      if (isTrouble(view.rankAt(topics[row], column))) return this.moveTo(row, column);
    }
    by("cell-text").textContent = "No cell that is shown has a difference or is unknown.";
  }

  activate() {
    const { view, topics, cursor } = this.picture;
    const topic = topics[cursor.row], name = view.grid.topics[topic];
    this.choose(name);
    if (cursor.column < 0) return;
    const hour = view.worstHour(topic, cursor.column);
    const hourMs = view.grid.startMs + hour * HOUR_MS;
    if (view.bucket === 1) return void (view.grid.rankAt(topic, hour) !== NOTHING && this.open(name, hourMs));
    this.isFine = true;
    this.arrange();
    this.moveTo(this.picture.cursor.row, this.picture.view.columnOf(hourMs));
    this.center();
  }

  center() {
    const { root, picture } = this;
    root.scrollLeft = picture.cursor.column * picture.cellPx - (root.clientWidth - picture.labelPx) / 2;
  }

  onKey(event) {
    const { view, topics, cursor, rowPx } = this.picture;
    if (!view || !topics.length || event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.root.clientHeight / rowPx) - 2);
    const { row, column } = cursor;
    const moves = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      PageUp: [row - page, column], PageDown: [row + page, column],
      Home: event.ctrlKey ? [0, 0] : [row, -1], End: event.ctrlKey ? [topics.length - 1, view.columns - 1] : [row, view.columns - 1],
    };
    const move = moves[event.key];
    if (move) this.moveTo(...move);
    else if (event.ctrlKey) return;
    else if (event.key === "Enter" || event.key === " ") this.activate();
    else if (event.key === "n" || event.key === "p") this.moveToTrouble(event.key === "n" ? 1 : -1);
    else if (event.key === "Escape" && this.isFine) this.zoom(false);
    else return;
    event.preventDefault();
  }

  onClick(event) {
    const at = this.picture.at(event);
    if (!at) return;
    this.root.focus({ preventScroll: true });
    this.moveTo(at.row, at.column);
    this.activate();
  }

  onHover(event) {
    const at = this.picture.at(event);
    this.root.classList.toggle("pointing", at !== null);
    if (at) this.describe({ ...at });
  }
}

/** Returns how far a topic is complete, as text, by the service's clock. */
export const behind = (completeMs, nowMs) => (completeMs === null || nowMs === null ? "" : `${duration(Math.max(0, (nowMs - Number(completeMs)) / 1000))} ago`);
