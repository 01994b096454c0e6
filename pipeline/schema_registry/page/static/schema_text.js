// Schema texts: parsed without loss (numbers keep their digits), printed in lines, and compared line by line.

const WIDTH = 100;
const MAX_DEPTH = 400;
const MAX_CELLS = 4_000_000;
const TOKEN = /\s*([{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+)/gy;

/** A number or a literal, as it is written. */
export class Literal {
  constructor(text) {
    this.text = text;
  }
}

/** Returns objects as Maps, arrays, strings, and Literals; null if the text is no JSON, or nests too deep. */
export function parse(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = Array.from(text.matchAll(TOKEN), (match) => match[1]);
  let place = 0;
  const value = (depth) => {
    if (depth > MAX_DEPTH) throw new RangeError("too deep");
    const token = tokens[place++];
    if (token === "{") {
      const found = new Map();
      while (tokens[place] !== "}") {
        if (tokens[place] === ",") place++;
        const key = JSON.parse(tokens[place]);
        place += 2; // behind the colon
        found.set(key, value(depth + 1));
      }
      place++;
      return found;
    }
    if (token === "[") {
      const found = [];
      while (tokens[place] !== "]") {
        if (tokens[place] === ",") place++;
        found.push(value(depth + 1));
      }
      place++;
      return found;
    }
    return token.startsWith('"') ? JSON.parse(token) : new Literal(token);
  };
  try {
    return value(0);
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

/** Returns a parsed value in one line. */
export function inline(value) {
  if (value instanceof Map) return `{${Array.from(value, ([key, part]) => `${JSON.stringify(key)}: ${inline(part)}`).join(", ")}}`;
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  return value instanceof Literal ? value.text : JSON.stringify(value);
}

/** Returns what `inline` does, or null if that has more than `room` characters. */
function short(value, room) {
  if (!(value instanceof Map) && !Array.isArray(value)) {
    const text = inline(value);
    return text.length <= room ? text : null;
  }
  const isMap = value instanceof Map;
  let line = "";
  for (const entry of value) {
    const head = `${line && ", "}${isMap ? `${JSON.stringify(entry[0])}: ` : ""}`;
    const part = short(isMap ? entry[1] : entry, room - 2 - line.length - head.length);
    if (part === null) return null;
    line += head + part;
  }
  if (line.length + 2 > room) return null;
  return isMap ? `{${line}}` : `[${line}]`;
}

function block(value, indent, before) {
  const isScalar = !(value instanceof Map) && !Array.isArray(value);
  const line = isScalar ? inline(value) : short(value, WIDTH - indent.length - before.length);
  if (line !== null) return `${indent}${before}${line}`;
  const [open, close] = value instanceof Map ? "{}" : "[]";
  const parts = value instanceof Map
    ? Array.from(value, ([key, part]) => block(part, `${indent}  `, `${JSON.stringify(key)}: `))
    : value.map((part) => block(part, `${indent}  `, ""));
  return `${indent}${before}${open}\n${parts.join(",\n")}\n${indent}${close}`;
}

/** Returns the text in lines; as it is, if it is no JSON. */
export function pretty(text) {
  const parsed = parse(text);
  return parsed === null ? text : block(parsed, "", "");
}

/** Returns true for lines that differ by a comma at the end at most, as the last one of a list does. */
const isSame = (left, right) => left === right || left.replace(/,$/, "") === right.replace(/,$/, "");

/** Returns the lines of both texts in order, each with a mark (" ", "-", "+") and its numbers. */
export function compareLines(oldText, newText) {
  const [before, after] = [oldText.split("\n"), newText.split("\n")];
  let start = 0;
  while (start < before.length && start < after.length && isSame(before[start], after[start])) start++;
  let end = 0;
  while (end < Math.min(before.length, after.length) - start && isSame(before.at(-1 - end), after.at(-1 - end))) end++;
  const rows = after.slice(0, start).map((text, n) => ({ mark: " ", text, old: n + 1, new: n + 1 }));
  const [left, right] = [before.slice(start, before.length - end), after.slice(start, after.length - end)];
  let [i, j] = [0, 0];
  const removed = () => rows.push({ mark: "-", text: left[i], old: start + ++i });
  const added = () => rows.push({ mark: "+", text: right[j], new: start + ++j });
  const common = longestCommon(left, right);
  while (common && i < left.length && j < right.length) {
    if (isSame(left[i], right[j])) rows.push({ mark: " ", text: right[j], old: start + ++i, new: start + ++j });
    else if (common(i + 1, j) >= common(i, j + 1)) removed();
    else added();
  }
  while (i < left.length) removed();
  while (j < right.length) added();
  for (let n = end; n > 0; n--) rows.push({ mark: " ", text: after.at(-n), old: before.length - n + 1, new: after.length - n + 1 });
  return rows;
}

/** Returns a function that gives the length of the longest common part of the ends from i and j on; null if too large. */
function longestCommon(left, right) {
  const width = right.length + 1;
  if (width * (left.length + 1) > MAX_CELLS) return null;
  const lengths = new Uint32Array(width * (left.length + 1));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      lengths[i * width + j] = isSame(left[i], right[j])
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  return (i, j) => lengths[i * width + j];
}
