// One hour of a topic: partitions, offsets, findings as sentences, missing witnesses, and the story of the hour.

import { Source, ask } from "./contact.js";
import { readHour, readStory } from "./documents.js";
import { STATUSES, rankOfName, statusClass } from "./statuses.js";
import { HOUR_MS } from "./status_grid.js";
import { bytes, count, counted, duration, element, minute, nameElement, printable, sentence, sentenceNode } from "./text.js";

const ASK_EVERY_MS = 10_000;
const OLD_AFTER_MS = 25_000;
const NARROW_WITHIN_MS = 130_000;
const PARTITIONS_STEP = 100;
const MAX_PARTITIONS = 1000;
const by = (id) => document.getElementById(id);

/** Returns the mark of a status: its letter and name. */
export function statusMark(name) {
  const { letter } = STATUSES[rankOfName(name)];
  return element("span", statusClass(name), element("span", "letter", letter === "-" ? "−" : letter), name);
}

/** Returns the row of buttons to an hour as a hash of the page's address. */
export const hashOf = (topic, hourMs) => `#/${encodeURIComponent(topic)}/${hourMs}`;

/** Returns { topic, hourMs } of a hash; null if it is of no hour. */
export function placeOf(hash) {
  const found = /^#\/([^/]+)\/(-?\d{1,16})$/.exec(hash);
  if (!found) return null;
  try {
    return { topic: decodeURIComponent(found[1]), hourMs: Number(found[2]) };
  } catch {
    return null; // not an address that this page made
  }
}

const offsetsText = (first, last) => (first === null || last === null ? "" : first === last ? `offset ${count(first)}` : `offsets ${count(first)} to ${count(last)}`);

function witnessItem(witness) {
  const where = [witness.cluster, witness.partition].filter((each) => each !== null).join(" ");
  const item = element("li", "", element("b", "", nameElement(witness.name)), ": ", sentenceNode(witness.reason));
  if (where) item.append(element("span", "small", nameElement(where)));
  return item;
}

function findingItem(finding) {
  const item = element("li", "", statusMark(finding.status), " ", element("span", "finding-text", sentenceNode(finding.text)));
  const facts = [];
  if (finding.kind && finding.kind !== finding.status) facts.push(`kind: ${finding.kind}`);
  if (finding.offsets) facts.push(`within ${offsetsText(finding.offsets[0], finding.offsets[1])}`);
  if (finding.explanation) facts.push(`explained by ${finding.explanation}`);
  if (facts.length) item.append(element("span", "small", sentenceNode(facts.join(" · "))));
  if (finding.witness) item.append(element("ul", "plain", witnessItem(finding.witness)));
  return item;
}

function stagesTable(stages) {
  const head = element("tr", "", element("th", "", "Stage"), ...["Records", "Size", "Batches"].map((text) => element("th", "number", text)));
  const rows = stages.map((each) => element(
    "tr", "", element("td", "", nameElement(each.stage)), element("td", "number", count(each.records)), element("td", "number", bytes(each.bytes)), element("td", "number", count(each.batches)),
  ));
  return element("table", "narrow", element("thead", "", head), element("tbody", "", ...rows));
}

function partitionRows(partition, stageNames) {
  const name = element("th", "name-cell", nameElement(partition.source), element("span", "small", nameElement(partition.cluster)));
  name.scope = "row";
  if (partition.replica !== null && partition.replica !== partition.source) name.append(element("span", "small", "replica ", nameElement(partition.replica)));
  const cells = stageNames.map((stage) => {
    const counts = partition.stages.find((each) => each.stage === stage);
    const cell = element("td", "number", counts ? count(counts.records) : "–");
    cell.dataset.stage = printable(stage);
    if (counts && counts.first !== null) cell.append(element("span", "small", `${count(counts.first)} to ${count(counts.last)}`));
    return cell;
  });
  const rows = [element("tr", "", name, element("td", "", statusMark(partition.status)), ...cells)];
  if (partition.findings.length) {
    const cell = element("td", "", element("ul", "plain findings", ...partition.findings.map(findingItem)));
    cell.colSpan = 2 + stageNames.length;
    rows[0].classList.add("joined");
    rows.push(element("tr", "", cell));
  }
  return rows;
}

function partitionsTable(hour) {
  const stageNames = hour.stages.map((each) => each.stage);
  const head = element("tr", "", element("th", "", "Partition"), element("th", "", "Status"), ...stageNames.map((stage) => element("th", "number", nameElement(stage))));
  const caption = element("caption", "small", "Records of each stage, with the first and last offset of the hour");
  return element("table", "partitions", caption, element("thead", "", head), element("tbody", "", ...hour.partitions.flatMap((each) => partitionRows(each, stageNames))));
}

const section = (title, ...children) => element("section", "", element("h3", "", title), ...children);

/** The dialog of one hour. `onClose` is called after it has been closed. */
export class Details {
  constructor(onClose) {
    this.dialog = by("details");
    this.source = null;
    this.place = null;
    this.onClose = onClose;
    this.dialog.addEventListener("close", () => this.end());
    this.dialog.addEventListener("click", (event) => { // beside the dialog
      if (event.target === this.dialog && event.clientX < this.dialog.getBoundingClientRect().left) this.dialog.close();
    });
    by("details-close").addEventListener("click", () => this.dialog.close());
    by("hour-before").addEventListener("click", () => this.step(-1));
    by("hour-after").addEventListener("click", () => this.step(1));
    by("narrow").addEventListener("click", () => this.tell(true));
    setInterval(() => this.showAge(), 1000);
  }

  step(hours) {
    location.hash = hashOf(this.place.topic, this.place.hourMs + hours * HOUR_MS);
  }

  open(topic, hourMs) {
    this.source?.stop();
    this.place = { topic, hourMs };
    this.limit = PARTITIONS_STEP;
    by("details-title").replaceChildren(nameElement(topic));
    by("details-hour").textContent = `${minute(hourMs)} to ${minute(hourMs + HOUR_MS).split(" ").pop()} UTC`;
    by("details-status").replaceChildren();
    by("hour-body").replaceChildren(element("p", "", "Waiting for the answer of the audit service"));
    by("story").replaceChildren();
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.listen();
    this.tell(false);
  }

  get path() {
    return `${encodeURIComponent(this.place.topic)}/${this.place.hourMs}`;
  }

  listen() {
    this.source?.stop();
    const source = new Source(`v1/hours/${this.path}?limit=${this.limit}`, {
      everyMs: ASK_EVERY_MS, oldAfterMs: OLD_AFTER_MS, read: readHour,
      onChange: (isNew) => {
        if (isNew) this.show(source.value);
        this.showAge();
      },
    });
    this.source = source;
    source.run();
  }

  showAge() {
    const { source } = this;
    if (!source || !this.dialog.open) return;
    const { problem } = source;
    const isOld = source.isOld || (source.seenAt === null && problem !== "");
    this.dialog.classList.toggle("old", isOld);
    const age = source.ageMs === null ? "" : `as of ${duration(Math.floor(source.ageMs / 1000))} ago`;
    by("details-age").textContent = problem ? sentence(`${source.seenAt === null ? "" : `No news: what is below is ${age}. `}${problem}`) : age;
    if (problem && source.seenAt === null) by("hour-body").replaceChildren(element("p", "bad-text", sentenceNode(`This hour is not known: ${problem}`)));
  }

  show(hour) {
    by("details-status").replaceChildren(statusMark(hour.status), sentenceNode(hour.kind && hour.kind !== hour.status ? ` ${hour.kind}` : ""));
    const parts = [];
    if (hour.missingWitnesses.length) parts.push(section("Missing witnesses", element("ul", "plain", ...hour.missingWitnesses.map(witnessItem))));
    if (hour.restsOn.length) parts.push(section("What the verdict rests on", element("ul", "plain rests", ...hour.restsOn.map((each) => element("li", "", sentenceNode(each))))));
    parts.push(section("The whole topic", element("div", "wide", stagesTable(hour.stages))));
    const shown = hour.partitions.length;
    parts.push(section(`Partitions, the worst first (${shown < hour.inAll ? `${count(shown)} of ${count(hour.inAll)}` : count(hour.inAll)})`, element("div", "wide", partitionsTable(hour))));
    if (shown < hour.inAll && this.limit < MAX_PARTITIONS) {
      const more = element("button", "", "Show more partitions");
      more.type = "button";
      more.addEventListener("click", () => {
        this.limit = Math.min(MAX_PARTITIONS, this.limit * 5);
        this.listen();
      });
      parts.push(more);
    } else if (shown < hour.inAll) parts.push(element("p", "note", `${counted(hour.inAll - shown, "partition")} more, none worse: pipeline audit report lists them.`));
    const hadFocus = by("hour-body").contains(document.activeElement);
    by("hour-body").replaceChildren(...parts);
    if (hadFocus) by("details-close").focus();
  }

  /** Shows the story of the hour; narrowed, with the batches and records that the brokers were asked about. */
  async tell(isNarrow) {
    const { place } = this;
    by("narrow").disabled = isNarrow;
    by("story-state").textContent = isNarrow ? "The brokers are being asked; this may take a minute." : "";
    try {
      const options = isNarrow ? { withinMs: NARROW_WITHIN_MS } : {};
      const answer = await ask(`v1/explain/${this.path}${isNarrow ? "?narrow=true" : ""}`, options);
      if (place === this.place) this.showStory(readStory(answer.document));
    } catch (error) {
      if (place === this.place) by("story-state").textContent = sentence(`The story is not known: ${error.message}`);
    } finally {
      if (place === this.place) by("narrow").disabled = false;
    }
  }

  showStory(story) {
    by("story-state").textContent = story.narrowingError === null ? "" : sentence(`The brokers could not be asked: ${story.narrowingError}`);
    by("story").replaceChildren(...story.sentences.map((each) => element("li", "", sentenceNode(each))));
    if (story.isNarrowed) by("story").append(...story.findings.map(findingItem));
    by("narrow").hidden = story.isNarrowed;
  }

  end() {
    if (this.dialog.open) return; // another hour has been opened meanwhile
    this.source?.stop();
    this.source = null;
    this.place = null;
    this.onClose();
  }
}
