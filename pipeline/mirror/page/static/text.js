// Texts and elements. Texts of clusters (topic names, errors) are hostile input: they become text nodes only.

const MAX_TEXT = 600;
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** Returns the text without controls and changes of direction, cut at MAX_TEXT characters. */
export function printable(text) {
  const clean = String(text).replace(CONTROLS, "\ufffd");
  return clean.length > MAX_TEXT ? clean.slice(0, MAX_TEXT) + "…" : clean;
}

/** Returns an element with a class and children, of which strings become text nodes. */
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.map((child) => (child instanceof Node ? child : printable(child))));
  return made;
}

export const count = (value) => Math.round(value).toLocaleString("en-US");

/** Returns "1 partition", "2 partitions". */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const [unit, small, big] = seconds < 7200 ? [60, "s", "min"] : seconds < 172800 ? [3600, "min", "h"] : [86400, "h", "d"];
  const rest = Math.floor((seconds % unit) / { s: 1, min: 60, h: 3600 }[small]);
  return `${Math.floor(seconds / unit)} ${big}${rest ? ` ${rest} ${small}` : ""}`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const two = (value) => String(value).padStart(2, "0");

export function time(ms, withSeconds = true) {
  const moment = new Date(ms);
  return `${two(moment.getHours())}:${two(moment.getMinutes())}${withSeconds ? `:${two(moment.getSeconds())}` : ""}`;
}

export function dateAndTime(ms) {
  const moment = new Date(ms);
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${time(ms)}`;
}

/** Returns a word that a shell takes as it is. */
export const shellWord = (word) => (/^[A-Za-z0-9._:\/@%+=,-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`);
