// Differences of two Avro schemas by fields.

import { inline, parse } from "./schema_text.js";

const MAX_PLACES = 20_000;
const MAX_PLACE = 1000;
const NAMED = new Set(["record", "error", "enum", "fixed"]);
const SHOWN_APART = new Set(["type", "name", "namespace", "fields", "items", "values"]);

/** Returns a type in short: names of named types, `array of long`, `null or string`. */
function typeText(type) {
  if (typeof type === "string") return type;
  if (Array.isArray(type)) return type.map(typeText).join(" or ");
  if (!(type instanceof Map)) return inline(type);
  const kind = type.get("type");
  const logical = type.has("logicalType") ? ` (${inline(type.get("logicalType")).replaceAll('"', "")})` : "";
  if (kind === "array") return `array of ${typeText(type.get("items") ?? "?")}`;
  if (kind === "map") return `map of ${typeText(type.get("values") ?? "?")}`;
  if (NAMED.has(kind)) return `${kind} ${fullName(type)}${logical}`;
  return kind === undefined ? inline(type) : `${typeText(kind)}${logical}`;
}

function fullName(type) {
  const [name, space] = [type.get("name"), type.get("namespace")];
  if (typeof name !== "string") return "?";
  return typeof space === "string" && space && !name.includes(".") ? `${space}.${name}` : name;
}

/** Adds each place of a schema (a field, or a type inside of one) with its attributes, in order. */
function collect(type, place, found) {
  if (found.size > MAX_PLACES || place.length > MAX_PLACE) throw new RangeError("too many fields, or too long names");
  if (Array.isArray(type)) {
    const named = type.filter((branch) => branch instanceof Map && NAMED.has(branch.get("type")));
    for (const branch of type) {
      const isOneOfMany = named.length > 1 && named.includes(branch);
      collect(branch, isOneOfMany ? `${place}<${branch.get("name")}>` : place, found);
    }
  } else if (type instanceof Map) {
    const kind = type.get("type");
    if (kind === "array") collect(type.get("items"), `${place}[]`, found);
    else if (kind === "map") collect(type.get("values"), `${place}{}`, found);
    else if (NAMED.has(kind)) collectNamed(type, kind, place, found);
    else if (kind !== undefined && typeof kind !== "string") collect(kind, place, found);
  }
}

function collectNamed(type, kind, place, found) {
  const attributes = found.get(place) ?? new Map();
  found.set(place, attributes);
  if (!place) attributes.set("type", typeText(type));
  for (const [name, value] of type) if (!SHOWN_APART.has(name)) attributes.set(`${kind} ${name}`, inline(value));
  const fields = type.get("fields");
  if (!Array.isArray(fields)) return;
  for (const field of fields) {
    if (!(field instanceof Map)) continue;
    const inner = `${place ? `${place}.` : ""}${field.get("name")}`;
    const told = new Map([["type", typeText(field.get("type") ?? "?")]]);
    for (const [name, value] of field) if (name !== "name" && name !== "type") told.set(name, inline(value));
    found.set(inner, told);
    collect(field.get("type"), inner, found);
  }
}

/** Returns `{place, change, before, after}` for each difference; null if a text is no JSON, or too large to tell all. */
export function fieldDifferences(oldText, newText) {
  const [before, after] = [parse(oldText), parse(newText)];
  if (before === null || after === null) return null;
  const [olds, news] = [new Map(), new Map()];
  try {
    collect(before, "", olds);
    collect(after, "", news);
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
  if (!olds.size) olds.set("", new Map([["type", typeText(before)]]));
  if (!news.size) news.set("", new Map([["type", typeText(after)]]));
  const differences = [];
  const told = (attributes) => Array.from(attributes, ([name, text]) => (name === "type" ? text : `${name} ${text}`)).join(", ");
  for (const [place, attributes] of news) {
    const former = olds.get(place);
    if (former === undefined) differences.push({ place, change: "added", before: "", after: told(attributes) });
    else {
      for (const name of new Set([...former.keys(), ...attributes.keys()])) {
        const [was, is] = [former.get(name) ?? "", attributes.get(name) ?? ""];
        if (was !== is) differences.push({ place, change: `${name} ${was ? (is ? "changed" : "removed") : "added"}`, before: was, after: is });
      }
    }
  }
  for (const [place, attributes] of olds) {
    if (!news.has(place)) differences.push({ place, change: "removed", before: told(attributes), after: "" });
  }
  return differences;
}
