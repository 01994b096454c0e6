// A subject: its settings, its versions with their texts, differences and references, and the check of a new schema.

import * as api from "./registry_api.js";
import { fieldDifferences } from "./avro_fields.js";
import { count, counted, element, linkTo, printable, show, visible } from "./elements.js";
import { demanding, whyUnknown } from "./overview.js";
import { compareLines, pretty } from "./schema_text.js";

const CONTEXT_LINES = 3;
const MAX_LINES = 20_000;
const MAX_REFERRERS = 50;
const MAX_VERSIONS = 200;

/** Returns the elements of a subject and one of its versions; null stands for the latest. */
export async function showSubject(subject, wanted) {
  const [numbers, live, own, config, ownMode, mode, topics] = await Promise.all([
    api.versions(subject), api.liveVersions(subject), api.ownConfig(subject), api.config(subject), api.ownMode(subject),
    api.mode(subject), api.topics().catch((error) => ({ error: error.message })),
  ]);
  const number = wanted ?? live.at(-1) ?? numbers.at(-1);
  const version = await api.version(subject, number);
  return [
    element("h1", { tabindex: "-1" }, subject),
    factsOf(subject, numbers, live, { own, config, ownMode, mode, topics }),
    versionsOf(subject, numbers, new Set(live), number),
    await versionSection(subject, version, live.includes(number)),
    await differencesSection(subject, numbers, new Set(live), version),
    checkSection(subject, numbers, version),
  ];
}

function factsOf(subject, numbers, live, { own, config, ownMode, mode, topics }) {
  const facts = element("dl", {});
  const add = (term, ...content) => facts.append(element("dt", {}, term), element("dd", {}, ...content));
  add("Compatibility", config.compatibilityLevel, element("span", { class: "soft" }, own ? ", set for the subject" : ", not set for the subject"));
  if (config.normalize) add("Normalize", "yes");
  if (config.alias) add("Alias of", element("a", { href: linkTo(config.alias) }, config.alias));
  if (mode) add("Mode", mode.mode, element("span", { class: "soft" }, ownMode ? ", set for the subject" : ", not set for the subject"));
  const deleted = numbers.length - live.length;
  add("Versions", count(live.length), deleted ? `, and ${count(deleted)} deleted` : "");
  const demands = demanding(topics, subject);
  if (demands === null) add("Validated by", element("span", { class: "soft" }, whyUnknown(topics)));
  else add("Validated by", demands.length ? demands.map(({ topic, side }) => `topic ${topic} (${side}s)`).join(", ") : "no topic whose name gives this subject");
  return facts;
}

function versionsOf(subject, numbers, live, current) {
  const newestFirst = [...numbers].reverse();
  const shown = newestFirst.filter((number, place) => place < MAX_VERSIONS || number === current);
  const links = shown.map((number) => {
    const isDeleted = !live.has(number);
    const link = element("a", { href: linkTo(subject, number), class: isDeleted && "deleted", "aria-current": number === current && "true" }, String(number));
    if (isDeleted) link.setAttribute("aria-label", `${number}, deleted`);
    return element("li", {}, link);
  });
  const section = element("section", {}, element("h2", { id: "versions-heading" }, "Versions"));
  section.append(element("ul", { class: "versions", "aria-labelledby": "versions-heading" }, ...links));
  if (shown.length < numbers.length) section.append(element("p", { class: "soft" }, `The newest ${MAX_VERSIONS} of ${counted(numbers.length, "version")}.`));
  return section;
}

async function versionSection(subject, version, isLive) {
  const heading = element("h2", {}, `Version ${version.version} `);
  if (!isLive) heading.append(element("span", { class: "mark deleted" }, "deleted"));
  const facts = element("dl", {}, element("dt", {}, "Id"), element("dd", {}, String(version.id)));
  const add = (term, ...content) => facts.append(element("dt", {}, term), element("dd", {}, ...content));
  if (version.guid) add("GUID", version.guid);
  add("Type", version.schemaType ?? "AVRO");
  const references = version.references ?? [];
  add("References", ...listed(references.map((one) => element("span", {}, `${one.name}: `, versionLink(one.subject, one.version)))));
  add("Referenced by", ...await referrersOf(subject, version.version));
  return element("section", {}, heading, facts, element("h3", { id: "text-heading" }, "Schema"), textOf(version.schema));
}

const versionLink = (subject, number) => element("a", { href: linkTo(subject, number) }, `${subject} version ${number}`);

const listed = (parts) => (parts.length ? parts.flatMap((part, place) => (place ? [element("br", {}), part] : [part])) : ["none"]);

async function referrersOf(subject, number) {
  const ids = await api.referrers(subject, number);
  const found = await Promise.all(ids.slice(0, MAX_REFERRERS).map((id) => api.versionsOfId(id, subject)));
  const links = found.flat().map((user) => versionLink(user.subject, user.version));
  if (ids.length > MAX_REFERRERS) links.push(element("span", { class: "soft" }, `and ${ids.length - MAX_REFERRERS} more schemas`));
  return listed(links);
}

function textOf(text) {
  const shown = element("pre", { tabindex: "0", "aria-labelledby": "text-heading", role: "region" });
  shown.append(visible(pretty(text)));
  return shown;
}

async function differencesSection(subject, numbers, live, version) {
  const others = numbers.filter((number) => number !== version.version);
  const section = element("section", {}, element("h2", {}, "Differences"));
  if (!others.length) return section.append(element("p", { class: "soft" }, "The subject has no other version.")), section;
  const choice = element("select", { id: "other" }, ...others.toReversed().map((number) => element("option", { value: number }, `version ${number}${live.has(number) ? "" : ", deleted"}`)));
  choice.value = String(others.filter((number) => number < version.version).at(-1) ?? others[0]);
  const result = element("div", { "aria-live": "polite" });
  const compare = async () => {
    const wanted = choice.value;
    try {
      const other = await api.version(subject, Number(wanted));
      if (wanted === choice.value) show(result, ...differencesOf(other, version));
    } catch (error) {
      show(result, element("p", { class: "trouble" }, error.message));
    }
  };
  choice.addEventListener("change", compare);
  section.append(element("p", { class: "row near" }, element("label", { for: "other" }, `Version ${version.version} compared with`), choice), result);
  await compare();
  return section;
}

function differencesOf(other, version) {
  const fields = fieldDifferences(other.schema, version.schema);
  const parts = [element("h3", {}, "By fields")];
  if (fields === null) parts.push(element("p", { class: "soft" }, "A text is no JSON, or has too many fields or too long names: compare the lines."));
  else if (!fields.length) parts.push(element("p", { class: "soft" }, "No field differs."));
  else parts.push(fieldTable(fields, other.version, version.version));
  parts.push(element("h3", { id: "lines-heading" }, "By lines"));
  parts.push(lineTable(compareLines(pretty(other.schema), pretty(version.schema))));
  return parts;
}

function fieldTable(fields, before, after) {
  const heads = ["Field", "Change", `Version ${before}`, `Version ${after}`].map((text) => element("th", { scope: "col" }, text));
  const rows = fields.map((each) => element(
    "tr", {},
    element("th", { scope: "row" }, each.place || "(the whole schema)"),
    element("td", {}, each.change), element("td", {}, element("code", {}, each.before)), element("td", {}, element("code", {}, each.after)),
  ));
  return element("div", { class: "wide" }, element("table", { id: "fields" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
}

function lineTable(rows) {
  if (rows.every((row) => row.mark === " ")) return element("p", { class: "soft" }, "No line differs.");
  const near = new Uint8Array(rows.length);
  rows.forEach((row, place) => {
    if (row.mark !== " ") near.fill(1, Math.max(0, place - CONTEXT_LINES), place + CONTEXT_LINES + 1);
  });
  const body = element("tbody", {});
  for (let place = 0; place < rows.length && body.childElementCount < MAX_LINES; place++) {
    if (near[place]) body.append(lineRow(rows[place]));
    else {
      let end = place;
      while (end < rows.length && !near[end]) end++;
      body.append(element("tr", { class: "equal-run" }, element("td", { colspan: "4" }, `${counted(end - place, "equal line")}`)));
      place = end - 1;
    }
  }
  return element("div", { class: "lines", tabindex: "0", role: "region", "aria-labelledby": "lines-heading" }, element("table", { id: "lines" }, body));
}

function lineRow(row) {
  const kind = { "+": "added", "-": "removed", " ": null }[row.mark];
  const text = element("td", {});
  text.append(visible(row.text));
  return element(
    "tr", { class: kind },
    element("td", { class: "number" }, String(row.old ?? "")), element("td", { class: "number" }, String(row.new ?? "")),
    element("td", {}, row.mark), text,
  );
}

function checkSection(subject, numbers, version) {
  const text = element("textarea", { id: "candidate", spellcheck: "false", placeholder: '{"type": "record", ...}' });
  const against = element(
    "select", { id: "against" },
    element("option", { value: "" }, "the versions that the compatibility level names"),
    ...numbers.toReversed().map((number) => element("option", { value: number }, `version ${number}`)),
  );
  const result = element("div", { id: "check-result", role: "status" });
  const references = version.references ?? [];
  const check = async () => {
    show(result, element("p", { class: "soft" }, "Checking …"));
    try {
      const schema = { schema: text.value, ...(references.length ? { references } : {}) };
      show(result, verdictOf(await api.check(subject, against.value, schema)));
    } catch (error) {
      show(result, element("div", { class: "result bad" }, element("strong", {}, "Not checked. "), error.message));
    }
  };
  const take = element("button", { type: "button" }, `Take the text of version ${version.version}`);
  take.addEventListener("click", () => {
    text.value = pretty(version.schema);
    text.focus();
  });
  const form = element(
    "form", {},
    element("label", { for: "candidate" }, "Schema"), text,
    element("p", { class: "row near" }, element("label", { for: "against" }, "Against"), against),
    references.length ? element("p", { class: "soft" }, `With the references of version ${version.version}: ${references.map((one) => printable(one.name)).join(", ")}`) : "",
    element("p", { class: "row near" }, element("button", { type: "submit", class: "main" }, "Check"), take),
    result,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    check();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) check();
  });
  return element("section", {}, element("h2", {}, "Check a schema"), element("p", { class: "soft" }, "Nothing is registered."), form);
}

function verdictOf(answer) {
  if (answer.is_compatible) return element("div", { class: "result well" }, element("strong", {}, "Compatible."));
  const reasons = (answer.messages ?? []).map((reason) => element("li", {}, reason));
  return element("div", { class: "result bad" }, element("strong", {}, "Not compatible."), element("ul", {}, ...reasons));
}
