// The picture of the heat map: a canvas that paints the visible cells alone, and for screen readers the row and cell
// that the cursor is at. The canvas stays in sight while the empty sheet below it is scrolled.

import { STATUSES } from "./statuses.js";
import { HOUR_MS } from "./status_grid.js";
import { element, moment, printable } from "./text.js";

const HEADER_PX = 38;
const STRIP = 48; // cells
const MAX_LABEL_PX = 340;
const MAX_BACKING_PX = 16_000_000; // pixels of the canvas
const COARSE = matchMedia("(pointer: coarse)");

/** Returns the sizes of rows and cells: cells that fingers can hit, where there is no mouse. */
export const sizes = () => (COARSE.matches ? { row: 28, cell: 24 } : { row: 20, cell: 15 });

/** Returns the pixels that names take, of the width of the whole. */
export const labelWidth = (width) => Math.round(Math.min(MAX_LABEL_PX, Math.max(96, width * 0.27)));

const DRAW_PATTERN = {
  r: (draw, w, h) => { draw.fillRect(2, h - 4, w - 4, 1.5); },
  x: (draw, w, h) => { for (let x = -h; x < w; x += 6) line(draw, x, h, x + h, 0); },
  q: (draw, w, h) => { for (let x = 3; x < w; x += 5) for (let y = 3; y < h; y += 5) draw.fillRect(x, y, 1, 1); },
  p: (draw, w, h) => { for (let y = 3; y < h; y += 5) line(draw, 0, y, w, y); },
  u: (draw, w, h) => { for (let x = -h; x < w + h; x += 7) { line(draw, x, 0, x + h, h); line(draw, x, h, x + h, 0); } },
  c: (draw, w, h) => { for (let x = -h; x < w; x += 5) line(draw, x, 0, x + h, h); },
};

function line(draw, fromX, fromY, toX, toY) {
  draw.beginPath();
  draw.moveTo(fromX, fromY);
  draw.lineTo(toX, toY);
  draw.stroke();
}

export class GridPicture {
  /** `root` is the element of role grid. `swatches`: by rank, elements whose colours the cells take. */
  constructor(root, swatches) {
    this.root = root;
    this.swatches = swatches;
    this.canvas = element("canvas", "");
    this.canvas.setAttribute("aria-hidden", "true");
    this.rows = element("div", "reader-rows");
    this.sheet = element("div", "sheet", this.canvas, this.rows);
    root.replaceChildren(this.sheet);
    this.view = null;
    this.topics = [];
    this.ranks = new Set();
    this.cursor = { row: 0, column: 0 };
    this.hovered = null;
    this.watermarks = new Map();
    this.isScheduled = false;
    this.isPainted = false;
    this.announced = "";
    this.labels = new Map();
    root.addEventListener("scroll", () => this.schedule(), { passive: true });
    for (const kind of ["focus", "blur"]) root.addEventListener(kind, () => this.schedule());
    new ResizeObserver(() => this.onResize()).observe(root);
    this.onResize = () => this.schedule();
    this.readColors();
  }

  /** Takes the colours anew, after the theme has changed. */
  readColors() {
    const own = getComputedStyle(this.root);
    this.colors = { text: own.color, ground: own.backgroundColor, rule: own.borderTopColor, focus: own.outlineColor, font: own.fontFamily };
    this.statusColors = this.swatches.map((swatch) => {
      const style = getComputedStyle(swatch);
      return { ground: style.backgroundColor, text: style.color };
    });
    this.strips = null;
    this.schedule();
  }

  /** Shows rows (numbers of topics) of a view, `cellPx` wide. Cells of other than the chosen ranks are pale. */
  show(view, topics, ranks, cellPx) {
    Object.assign(this, { view, topics, ranks });
    const { row } = sizes();
    if (this.cellPx !== cellPx || this.rowPx !== row) this.strips = null;
    Object.assign(this, { cellPx, rowPx: row });
    this.labelPx = labelWidth(this.root.clientWidth);
    this.sheet.style.width = `${this.labelPx + view.columns * cellPx}px`;
    this.sheet.style.height = `${HEADER_PX + topics.length * row}px`;
    this.root.setAttribute("aria-rowcount", String(topics.length + 1));
    this.root.setAttribute("aria-colcount", String(view.columns + 1));
    this.paint();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.paint();
    });
  }

  /** Returns the row and column at a position of the mouse; column -1 is the name. Null beside all rows. */
  at(event) {
    if (!this.view) return null;
    const box = this.root.getBoundingClientRect();
    const x = event.clientX - box.left - this.root.clientLeft, y = event.clientY - box.top - this.root.clientTop;
    if (y < HEADER_PX || x >= this.root.clientWidth || y >= this.root.clientHeight) return null;
    const row = Math.floor((y - HEADER_PX + this.root.scrollTop) / this.rowPx);
    const column = x < this.labelPx ? -1 : Math.floor((x - this.labelPx + this.root.scrollLeft) / this.cellPx);
    return row < this.topics.length && column < this.view.columns ? { row, column } : null;
  }

  /** Scrolls as little as needed to have the cursor in sight. */
  reveal() {
    const { root, rowPx, cellPx, labelPx } = this;
    const top = this.cursor.row * rowPx, left = this.cursor.column * cellPx;
    const height = root.clientHeight - HEADER_PX - rowPx, width = root.clientWidth - labelPx - cellPx;
    if (top < root.scrollTop) root.scrollTop = top;
    else if (top > root.scrollTop + height) root.scrollTop = top - height;
    if (this.cursor.column < 0) root.scrollLeft = 0;
    else if (left < root.scrollLeft) root.scrollLeft = left;
    else if (left > root.scrollLeft + width) root.scrollLeft = left - width;
  }

  /** Names the cell at the cursor for screen readers: a new element each time, so that its name is read. */
  announce(topic, columnText, cellText) {
    const { row, column } = this.cursor;
    const words = JSON.stringify([row, column, topic, columnText, cellText]);
    if (words === this.announced) return; // nothing new: a screen reader would read it again
    this.announced = words;
    const parts = [
      ["columnheader", columnText, 1, column + 2], ["rowheader", column < 0 ? cellText : topic, row + 2, 1], ["gridcell", cellText, row + 2, column + 2],
    ];
    const [head, name, cell] = parts.map(([role, text, , index]) => {
      const made = element("div", "", text);
      made.setAttribute("role", role);
      made.setAttribute("aria-colindex", String(index));
      return made;
    });
    const active = column < 0 ? name : cell;
    active.id = `cell-${row}-${column}`;
    const lines = [[head], column < 0 ? [name] : [name, cell]].map((cells, line) => {
      const made = element("div", "", ...cells);
      made.setAttribute("role", "row");
      made.setAttribute("aria-rowindex", String(line ? row + 2 : 1));
      return made;
    });
    this.rows.replaceChildren(...lines);
    this.root.setAttribute("aria-activedescendant", active.id);
  }

  paint() {
    const width = this.root.clientWidth, height = this.root.clientHeight;
    if (!this.view || !width || !height) return;
    const dpr = Math.min(devicePixelRatio || 1, Math.sqrt(MAX_BACKING_PX / (width * height)));
    const [backingWidth, backingHeight] = [Math.round(width * dpr), Math.round(height * dpr)];
    if (this.canvas.width !== backingWidth || this.canvas.height !== backingHeight) {
      this.canvas.width = backingWidth;
      this.canvas.height = backingHeight;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    if (this.dpr !== dpr) this.strips = null;
    this.dpr = dpr;
    this.strips ??= STATUSES.map((status) => this.makeStrip(status));
    const draw = this.canvas.getContext("2d", { alpha: false });
    draw.setTransform(dpr, 0, 0, dpr, 0, 0);
    draw.fillStyle = this.colors.ground;
    draw.fillRect(0, 0, width, height);
    this.paintCells(draw, width, height);
    this.paintLabels(draw, height);
    this.paintHeader(draw, width);
    this.paintCursor(draw, width, height);
    if (!this.isPainted) performance.mark("heat-map-painted");
    this.isPainted = true;
  }

  /** Returns a strip of STRIP cells of a status: a run of equal cells is painted at once. */
  makeStrip(status) {
    const { cellPx, rowPx, dpr } = this;
    const strip = document.createElement("canvas");
    strip.width = Math.round(STRIP * cellPx * dpr);
    strip.height = Math.round(rowPx * dpr);
    if (!status.rank) return strip;
    const draw = strip.getContext("2d");
    draw.scale(dpr, dpr);
    for (let cell = 0; cell < STRIP; cell++) {
      draw.save();
      draw.translate(cell * cellPx, 0);
      this.paintCell(draw, status, cellPx - 1, rowPx - 1);
      draw.restore();
    }
    return strip;
  }

  paintCell(draw, { rank, letter }, w, h) {
    const { ground, text } = this.statusColors[rank];
    draw.beginPath();
    draw.rect(0, 0, w, h);
    draw.clip();
    draw.fillStyle = ground;
    draw.fillRect(0, 0, w, h);
    Object.assign(draw, { strokeStyle: text, fillStyle: text, lineWidth: 1, globalAlpha: 0.28 });
    DRAW_PATTERN[letter]?.(draw, w, h);
    if (letter === "e") return; // the plain cell
    draw.globalAlpha = 1;
    draw.font = `${letter === "-" || letter === "+" ? "700 15px" : "600 11.5px"} ${this.colors.font}`;
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    draw.fillText(letter === "-" ? "−" : letter, w / 2, h / 2 + 0.5);
  }

  paintCells(draw, width, height) {
    const { view, rowPx, cellPx, labelPx, root, strips, dpr } = this;
    const firstRow = Math.floor(root.scrollTop / rowPx), firstColumn = Math.floor(root.scrollLeft / cellPx);
    const lastRow = Math.min(this.topics.length, Math.ceil((root.scrollTop + height - HEADER_PX) / rowPx));
    const lastColumn = Math.min(view.columns, Math.ceil((root.scrollLeft + width - labelPx) / cellPx));
    for (let row = firstRow; row < lastRow; row++) {
      const topic = this.topics[row], y = HEADER_PX + row * rowPx - root.scrollTop;
      for (let column = firstColumn, end; column < lastColumn; column = end) {
        const rank = view.rankAt(topic, column);
        for (end = column + 1; end < lastColumn && end - column < STRIP && view.rankAt(topic, end) === rank; ) end++;
        if (!rank) continue;
        const isPale = this.ranks.size > 0 && !this.ranks.has(rank);
        if (isPale) draw.globalAlpha = 0.16;
        const width = (end - column) * cellPx, strip = strips[rank];
        draw.drawImage(strip, 0, 0, Math.min(strip.width, width * dpr), strip.height, labelPx + column * cellPx - root.scrollLeft, y, width, rowPx);
        if (isPale) draw.globalAlpha = 1;
      }
    }
    draw.fillStyle = this.colors.text;
    for (let row = firstRow; row < lastRow; row++) {
      const complete = this.watermarks.get(view.grid.topics[this.topics[row]]);
      if (complete === undefined || complete === null || (view.bucket > 1 && view.columnOf(complete) === view.columns - 1)) continue;
      const x = labelPx + ((complete - view.startMs) / (view.bucket * HOUR_MS)) * cellPx - root.scrollLeft;
      if (x >= labelPx && x <= width) this.paintWatermark(draw, x, HEADER_PX + (row + 1) * rowPx - root.scrollTop - 1);
    }
  }

  /** Paints a triangle that points to the moment from below. */
  paintWatermark(draw, x, bottom) {
    draw.beginPath();
    draw.moveTo(x, bottom - 5);
    draw.lineTo(x + 3.5, bottom);
    draw.lineTo(x - 3.5, bottom);
    draw.fill();
  }

  paintLabels(draw, height) {
    const { rowPx, labelPx, root, view } = this;
    draw.fillStyle = this.colors.ground;
    draw.fillRect(0, HEADER_PX, labelPx, height);
    draw.fillStyle = this.colors.text;
    draw.font = `13px ${this.colors.font}`;
    draw.textAlign = "left";
    draw.textBaseline = "middle";
    const first = Math.floor(root.scrollTop / rowPx);
    const last = Math.min(this.topics.length, Math.ceil((root.scrollTop + height - HEADER_PX) / rowPx));
    for (let row = first; row < last; row++) {
      const label = this.fitted(draw, view.grid.topics[this.topics[row]], labelPx - 12);
      draw.fillText(label, 4, HEADER_PX + (row + 0.5) * rowPx - root.scrollTop);
    }
  }

  /** Returns a name that is at most `room` pixels wide. The middle is left out: ends of names differ as often. */
  fitted(draw, name, room) {
    const key = `${room} ${name}`;
    let found = this.labels.get(key);
    if (found !== undefined) return found;
    found = printable(name);
    if (draw.measureText(found).width > room) {
      const letters = [...found];
      let low = 1, high = letters.length;
      const cut = (kept) => `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(letters.length - Math.floor(kept / 2)).join("")}`;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (draw.measureText(cut(middle)).width <= room) low = middle;
        else high = middle - 1;
      }
      found = cut(low);
    }
    if (this.labels.size > 20_000) this.labels.clear();
    this.labels.set(key, found);
    return found;
  }

  paintHeader(draw, width) {
    const { view, cellPx, labelPx, root } = this;
    draw.fillStyle = this.colors.ground;
    draw.fillRect(0, 0, width, HEADER_PX);
    draw.save();
    draw.beginPath();
    draw.rect(labelPx, 0, width - labelPx, HEADER_PX);
    draw.clip();
    draw.fillStyle = this.colors.text;
    draw.textAlign = "left";
    draw.textBaseline = "alphabetic";
    const first = Math.floor(root.scrollLeft / cellPx), last = Math.min(view.columns, Math.ceil((root.scrollLeft + width) / cellPx));
    let shownDay = "", dayEnd = -1, hourEnd = -1;
    for (let column = first; column < last; column++) {
      const [date, clock] = moment(view.momentOf(column)).split(" ");
      const x = Math.max(labelPx + 1, labelPx + column * cellPx - root.scrollLeft);
      if (date !== shownDay) {
        shownDay = date;
        draw.font = `600 12px ${this.colors.font}`;
        const text = x + 74 > width && column > first ? "" : cellPx * (24 / view.bucket) < 84 ? date.slice(5) : date;
        if (x >= dayEnd && text) {
          draw.fillText(text, x, 14);
          dayEnd = x + draw.measureText(text).width + 10;
        }
        draw.fillRect(x - 1, 18, 1, HEADER_PX - 20);
      }
      if (view.bucket < 24 && clock) {
        draw.font = `11px ${this.colors.font}`;
        const text = clock.slice(0, 2);
        const every = Math.max(1, Math.ceil(22 / cellPx));
        const isMark = Math.floor(view.momentOf(column) / (view.bucket * HOUR_MS)) % every === 0;
        if (isMark && x >= hourEnd) {
          draw.fillText(text, x + 1, 31);
          hourEnd = x + draw.measureText(text).width + 5;
        }
      }
    }
    draw.restore();
    draw.fillStyle = this.colors.rule;
    draw.fillRect(0, HEADER_PX - 1, width, 1);
    draw.fillRect(labelPx - 1, 0, 1, this.root.clientHeight);
    draw.fillStyle = this.colors.text;
    draw.font = `600 12px ${this.colors.font}`;
    draw.fillText("Topic", 4, 14);
  }

  paintCursor(draw, width, height) {
    const { rowPx, cellPx, labelPx, root } = this;
    const { row, column } = this.cursor;
    if (!this.topics.length) return;
    const y = HEADER_PX + row * rowPx - root.scrollTop;
    const [x, w] = column < 0 ? [0, labelPx - 1] : [labelPx + column * cellPx - root.scrollLeft, cellPx];
    const isFocused = document.activeElement === root;
    draw.save();
    draw.beginPath();
    draw.rect(column < 0 ? 0 : labelPx - 3, HEADER_PX - 3, width, height);
    draw.clip();
    draw.strokeStyle = this.colors.focus;
    draw.lineWidth = isFocused ? 3 : 1;
    draw.strokeRect(x - 0.5, y - 0.5, w, rowPx);
    draw.restore();
  }
}
