// Texts and elements. Texts of clusters (names of topics, groups, roots, hosts) are hostile input: they become text
// nodes only, without controls and changes of direction.

const MAX_TEXT = 800;
/** Controls and changes of direction; a joiner stays between the parts of an emoji alone. */
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|(?<!\p{Extended_Pictographic}[\ufe0f\u{1f3fb}-\u{1f3ff}]?)\u200d/gu;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+(?:\s+[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+)*/g;
const NONE = "–";

/** Returns the text without controls and changes of direction, cut at MAX_TEXT characters. */
export function printable(text) {
  const clean = String(text).replace(CONTROLS, "\ufffd");
  return clean.length > MAX_TEXT ? clean.slice(0, MAX_TEXT).replace(/[\ud800-\udbff]$/, "") + "…" : clean;
}

/** Returns a sentence in which names of right-to-left letters do not reorder the numbers beside them. */
export const sentence = (text) => printable(text).replace(RIGHT_TO_LEFT, "\u2068$&\u2069");

/** Returns a sentence as a text node: `element` would replace its marks of direction. */
export const sentenceNode = (text) => document.createTextNode(sentence(text));

/** Returns an element with a class and children, of which strings become text nodes. */
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.map((child) => (child instanceof Node ? child : printable(child))));
  return made;
}

/** Returns a name for a sentence, cut in the middle if it is long. */
export function shortName(name) {
  const letters = [...printable(name)];
  return letters.length > 60 ? `${letters.slice(0, 30).join("")}…${letters.slice(-29).join("")}` : letters.join("");
}

/** Returns an element that a name stands in, kept apart from the direction of the text around it. */
export const nameElement = (name) => element("bdi", "name", name);

/** Returns an element of SVG with attributes. */
export function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Returns a whole number (Number or BigInt) with separators. Numbers that JavaScript rounded are shown as such. */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "bigint") return value.toLocaleString("en-US");
  if (!Number.isFinite(value)) return NONE;
  return Math.abs(value) > Number.MAX_SAFE_INTEGER ? `about ${value.toPrecision(3)}` : Math.round(value).toLocaleString("en-US");
}

/** Returns "1 topic", "2 topics". */
export const counted = (value, noun) => `${count(value)} ${noun}${Number(value) === 1 ? "" : "s"}`;

const BRIEF = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

/** Returns a number with three digits: "812M". */
export const brief = (value) => BRIEF.format(value);

/** Returns a rate with three digits at most below 1000: "0.25", "12.3", "1,234". */
export function rate(value) {
  if (value === null) return NONE;
  if (value >= 100 || value === 0) return count(value);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  const [unit, small, big] = seconds < 7200 ? [60, "s", "min"] : seconds < 172800 ? [3600, "min", "h"] : [86400, "h", "d"];
  const rest = Math.floor((seconds % unit) / { s: 1, min: 60, h: 3600 }[small]);
  return `${count(Math.floor(seconds / unit))} ${big}${rest ? ` ${rest} ${small}` : ""}`;
}

/** Returns a time in ms as "12 ms", "1.5 s", "3 min". */
export function milliseconds(value) {
  if (value === null) return NONE;
  if (value < 1000) return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ms`;
  return value < 120000 ? `${Number((value / 1000).toFixed(1))} s` : duration(value / 1000);
}

export function bytes(value) {
  if (value === null) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let amount = Number(value), unit = 0;
  while (amount >= 999.5 && unit < units.length - 1) [amount, unit] = [amount / 1000, unit + 1];
  return `${amount < 10 && unit ? amount.toFixed(1) : Math.round(amount)} ${units[unit]}`;
}

const isWritable = (ms) => Number.isFinite(ms) && Math.abs(ms) <= 8.64e15;

/** Returns a moment as ISO 8601 in UTC, for example "2026-11-26 14:05:00"; outside of what a date can be, as ms. */
export function moment(ms) {
  if (!isWritable(ms)) return `${ms} ms`;
  return new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
}

/** Returns a moment to the minute. */
export const minute = (ms) => (isWritable(ms) ? moment(ms).replace(/:\d\d$/, "") : moment(ms));

/** Returns the day of a moment: "2026-11-26". */
export const day = (ms) => moment(ms).split(" ")[0];

const two = (value) => String(value).padStart(2, "0");

/** Returns the clock time of this browser. */
export function localTime(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
