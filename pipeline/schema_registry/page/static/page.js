// The page of the registry: the list of subjects, and what the address behind the # names. Details are in subject.js.

import * as api from "./registry_api.js";
import { ask, keepContact, noteRead } from "./contact.js";
import { count, counted, element, linkTo, printable, show } from "./elements.js";
import { showSubject } from "./subject.js";
import { showOverview } from "./overview.js";

const SHOWN_AT_ONCE = 200;
const DEFAULT_CONTEXT = ".";

const by = (id) => document.getElementById(id);
/** Subjects with whether they are deleted, and how many of those that match are listed. */
const list = { subjects: [], limit: SHOWN_AT_ONCE, at: null };
let visit = 0;
/** The address whose contents are shown. */
let shownAddress = null;

const contextOf = (subject) => (subject.startsWith(":.") ? subject.slice(1).split(":", 1)[0] : DEFAULT_CONTEXT);

/** Returns the subject and version that the address names; null for the overview. */
function place() {
  const found = /^#\/subjects\/([^/]+)(?:\/versions\/(\d+))?$/.exec(location.hash);
  try {
    return found && { subject: decodeURIComponent(found[1]), number: found[2] === undefined ? null : Number(found[2]) };
  } catch {
    return null;
  }
}

function complain(error) {
  const trouble = by("trouble");
  trouble.hidden = error === null;
  show(trouble, error === null ? "" : printable(error.message));
}

async function loadList() {
  try {
    const [all, live, contexts] = await Promise.all([api.subjects(true), api.subjects(false), api.contexts()]);
    const alive = new Set(live);
    list.subjects = all.map((name) => ({ name, lower: name.toLowerCase(), context: contextOf(name), isDeleted: !alive.has(name) }));
    list.at = new Date();
    showContexts(contexts);
    complain(null);
  } catch (error) {
    complain(error);
  }
  showList();
}

function showContexts(contexts) {
  const choice = by("context");
  const chosen = choice.value;
  show(choice, element("option", { value: "" }, "all"), ...contexts.map((name) => element("option", { value: name }, name === DEFAULT_CONTEXT ? "default" : name)));
  choice.value = contexts.includes(chosen) ? chosen : "";
  by("context-choice").hidden = contexts.length < 2;
}

function showList() {
  const wanted = by("search").value.trim().toLowerCase();
  const [context, withDeleted] = [by("context").value, by("deleted").checked];
  const matches = list.subjects.filter((each) =>
    (withDeleted || !each.isDeleted) && (!context || each.context === context) && (!wanted || each.lower.includes(wanted)));
  const current = place()?.subject;
  show(by("subjects"), ...matches.slice(0, list.limit).map(({ name, isDeleted }) => {
    const link = element("a", { href: linkTo(name), "aria-current": name === current && "page" }, name);
    if (isDeleted) link.append(" ", element("span", { class: "mark deleted" }, "deleted"));
    return element("li", {}, link);
  }));
  const more = matches.length - list.limit;
  by("more").hidden = more <= 0;
  const shown = more > 0 ? `, the first ${count(list.limit)} are listed` : "";
  const time = list.at ? `, read at ${list.at.toLocaleTimeString("en-GB")}` : "";
  show(by("matches"), list.at ? `${counted(matches.length, "subject")}${shown}${time}` : "");
}

async function showPlace(movesFocus) {
  const mine = ++visit;
  const isCurrent = () => mine === visit;
  const target = place();
  for (const link of by("subjects").querySelectorAll("a")) {
    if (target && link.getAttribute("href") === linkTo(target.subject)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${target ? `${printable(target.subject)} – ` : ""}Schema registry`;
  const content = by("content");
  content.setAttribute("aria-busy", "true");
  try {
    const shown = target ? await showSubject(target.subject, target.number) : await showOverview();
    if (isCurrent()) {
      show(content, ...shown);
      shownAddress = location.hash;
      noteRead();
    }
  } catch (error) {
    const isSilent = error.status === 0;
    if (isCurrent() && !(isSilent && shownAddress === location.hash)) { // else what is there stays, marked as old
      shownAddress = null;
      if (!isSilent) noteRead();
      show(content, element("h1", { tabindex: "-1" }, target ? target.subject : "Overview"), element("p", { class: "trouble" }, error.message));
    }
    if (!(error instanceof api.RegistryFailure)) throw error;
  } finally {
    if (isCurrent()) content.removeAttribute("aria-busy");
  }
  if (isCurrent() && movesFocus) content.querySelector("h1")?.focus();
}

/** Moves the focus among links by arrow keys; true if it was moved. */
function moveAmong(links, step) {
  const next = links[links.indexOf(document.activeElement) + step];
  next?.focus();
  return Boolean(next);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const focus = document.activeElement;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(focus.tagName);
  const names = [...by("subjects").querySelectorAll("a")];
  const step = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  let done = false;
  if (event.key === "/" && !isTyping) {
    by("search").select();
    by("search").focus();
    done = true;
  } else if (focus === by("search") && event.key === "Escape") {
    by("search").value = "";
    narrow();
    done = true;
  } else if (focus === by("search") && (event.key === "ArrowDown" || event.key === "Enter") && names.length) {
    if (event.key === "Enter") location.hash = names[0].getAttribute("href");
    else names[0].focus();
    done = true;
  } else if (names.includes(focus) && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    done = moveAmong(names, step);
    if (!done && step < 0) by("search").focus();
  } else if (focus.closest(".versions") && step) {
    done = moveAmong([...focus.closest(".versions").querySelectorAll("a")], step);
  }
  if (done) event.preventDefault();
}

function narrow() {
  list.limit = SHOWN_AT_ONCE;
  showList();
}

by("search").addEventListener("input", narrow);
by("context").addEventListener("change", narrow);
by("deleted").addEventListener("change", narrow);
by("reload").addEventListener("click", () => Promise.all([loadList(), showPlace(false), ask()]));
by("more").addEventListener("click", () => {
  const first = list.limit;
  list.limit += SHOWN_AT_ONCE;
  showList();
  by("subjects").querySelectorAll("a")[first]?.focus();
});
by("skip").addEventListener("click", (event) => {
  event.preventDefault();
  by("content").focus();
});
addEventListener("hashchange", () => showPlace(true));
addEventListener("keydown", onKey);
loadList();
showPlace(false);
keepContact();
