// What the page shows when no subject is chosen: settings of all subjects, topics that validate, keys.

import * as api from "./registry_api.js";
import { count, duration, element, linkTo } from "./elements.js";

const SIDES = ["key", "value"];
const MAX_TOPICS = 500;

/** Returns the subject that a topic's keys or values must belong to, if the topic alone tells. */
const subjectOf = (topic, side, demand) => (demand.strategy === "TopicNameStrategy" ? `${topic}-${side}` : null);

/** Returns the topics whose demand names this subject, as `{topic, side}`; null if the registry does not know. */
export function demanding(answer, subject) {
  if (answer === null || answer.error) return null;
  return answer.topics.flatMap((topic) => SIDES
    .filter((side) => topic[side] && subjectOf(topic.topic, side, topic[side]) === subject)
    .map((side) => ({ topic: topic.topic, side })));
}

/** Returns why the topics are not known, as a sentence; "" if they are. */
export function whyUnknown(answer) {
  if (answer === null) return "This registry does not tell which topics validate.";
  return answer.error ? `The brokers did not tell which topics validate: ${answer.error}` : "";
}

function demandCell(topic, side, demand) {
  if (!demand) return element("td", { class: "soft" }, "–");
  const subject = subjectOf(topic, side, demand);
  const cell = element("td", {}, subject === null ? demand.strategy : element("a", { href: linkTo(subject) }, subject));
  if (demand.decodes) cell.append(element("div", { class: "soft" }, "every datum must decode"));
  return cell;
}

function topicsSection(answer) {
  const section = element("section", {}, element("h2", {}, "Topics that validate"));
  const unknown = whyUnknown(answer);
  if (unknown) return section.append(element("p", { class: "trouble" }, unknown)), section;
  const rows = answer.topics.slice(0, MAX_TOPICS).map((each) =>
    element("tr", {}, element("th", { scope: "row" }, each.topic), ...SIDES.map((side) => demandCell(each.topic, side, each[side]))));
  const asked = `of ${count(answer.asked)} topics, as the brokers told ${duration(answer.age_s)} ago`;
  if (!rows.length) return section.append(element("p", { class: "soft" }, `None ${asked}.`)), section;
  const heads = ["Topic", "Keys: subject", "Values: subject"].map((text) => element("th", { scope: "col" }, text));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  const cut = answer.topics.length > MAX_TOPICS ? `, of which the first ${count(MAX_TOPICS)} are shown` : "";
  section.append(element("div", { class: "wide" }, table), element("p", { class: "soft" }, `${count(answer.topics.length)} ${asked}${cut}.`));
  return section;
}

function keysSection() {
  const keys = [["/", "to the search"], ["↓ ↑", "through the subjects"], ["Enter", "opens a subject"], ["← →", "through the versions of a subject"], ["Esc", "clears the search"]];
  const terms = keys.flatMap(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)]);
  return element("section", {}, element("h2", {}, "Keys"), element("dl", { class: "keys" }, ...terms));
}

/** Returns the elements of the overview. */
export async function showOverview() {
  const [config, mode, topics] = await Promise.all([api.globalConfig(), api.globalMode(), api.topics().catch((error) => ({ error: error.message }))]);
  return [
    element("h1", { tabindex: "-1" }, "All subjects"),
    element(
      "dl", {},
      element("dt", {}, "Compatibility"), element("dd", {}, config.compatibilityLevel),
      ...(mode ? [element("dt", {}, "Mode"), element("dd", {}, mode.mode)] : []),
    ),
    element("p", { class: "soft" }, "Settings of subjects that have none of their own."),
    topicsSection(topics),
    keysSection(),
  ];
}
