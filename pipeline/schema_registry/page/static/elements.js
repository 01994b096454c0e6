// Elements and texts. Texts of the registry (names, schemas, reasons) are hostile input: they become text nodes only.

const MAX_TEXT = 1000;
const CONTROLS = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Returns the text without controls and changes of direction; line ends stay. */
export const visible = (text) => String(text).replace(CONTROLS, "\ufffd");

/** Returns the visible text in one line, cut at MAX_TEXT characters. */
export function printable(text) {
  const clean = visible(text).replace(/\n/g, "\ufffd");
  return clean.length > MAX_TEXT ? `${clean.slice(0, MAX_TEXT)}…` : clean;
}

/** Returns an element with attributes and children, of which strings become text nodes. */
export function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : printable(child))));
  return made;
}

export const count = (value) => value.toLocaleString("en-US");

/** Returns "1 version", "2 versions". */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

/** Puts these children in the place of an element's children; null is left out. */
export function show(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null));
}

/** Returns the address of a subject on the page, or of one of its versions. */
export const linkTo = (subject, number) =>
  `#/subjects/${encodeURIComponent(subject)}${number === undefined ? "" : `/versions/${number}`}`;
