// The line in the header: who writes, and how old the state of the registry and the contents of the page are. Nothing
// is called complete without an answer of the last few seconds; without one, all that is shown is marked as old.

import * as api from "./registry_api.js";
import { duration, element, show } from "./elements.js";

const ASK_EVERY_MS = 2000;
const SHOW_EVERY_MS = 1000;
const OLD_AFTER_MS = 5000;
const MAX_PROOF_AGE_S = 10;
const MAX_READ_AGE_S = 60;

/** The last answer with the time (Date.now, which goes on while the machine sleeps) of its question, and the failure after it. */
const last = { journal: null, askedAt: null, failure: null, failedAt: null };
/** The time at which the contents were read. */
let readAt = null;

const clock = (at) => new Date(at).toLocaleTimeString("en-GB");
const bad = (text) => element("span", { class: "bad" }, text);

function ago(at) {
  const seconds = Math.max(0, Math.floor((Date.now() - at) / 1000));
  return seconds < 10 ? `${seconds} s` : duration(seconds);
}

/** Returns how old the proof is that the state is complete. The answer may have been on its way since the question. */
function proof() {
  const staleness = last.journal?.staleness_s;
  if (staleness === null || staleness === undefined) return bad("not proven to be complete");
  const age = staleness + Math.max(0, (Date.now() - last.askedAt) / 1000);
  const text = `complete ${duration(age)} ago`;
  return age > MAX_PROOF_AGE_S ? bad(text) : text;
}

function partsOf() {
  const isSilent = last.failure ? last.failure.status === 0 : last.askedAt !== null && Date.now() - last.askedAt > OLD_AFTER_MS;
  document.body.classList.toggle("old", isSilent);
  const reason = last.failure ? last.failure.message : "";
  if (isSilent && last.askedAt === null) return [bad(reason)];
  if (isSilent) return [bad(`No answer since ${clock(last.askedAt)}, ${ago(last.askedAt)} ago: what is shown may be old`)];
  if (last.failure) return [bad(`${reason} (${ago(last.failedAt)} ago)`), last.askedAt !== null && proof()];
  if (last.askedAt === null) return ["waiting for the registry"];
  const writer = last.journal?.writer;
  return [writer ? `writer ${writer.url || writer.name}, epoch ${writer.epoch}` : "no writer yet", proof()];
}

function showContact() {
  const parts = partsOf().filter(Boolean);
  if (readAt !== null) {
    const read = `read at ${clock(readAt)}`;
    parts.push(Date.now() - readAt > MAX_READ_AGE_S * 1000 ? bad(`${read}, ${ago(readAt)} ago: reload`) : read);
  }
  show(document.getElementById("state"), ...parts.flatMap((part, number) => (number ? [" · ", part] : [part])));
}

/** Notes that the contents are those of now. */
export function noteRead() {
  readAt = Date.now();
  showContact();
}

export async function ask() {
  const askedAt = Date.now();
  try {
    Object.assign(last, { journal: await api.journal(), askedAt, failure: null });
  } catch (failure) {
    Object.assign(last, { failure, failedAt: Date.now() });
  }
  showContact();
}

async function askAgainAndAgain() {
  for (;;) {
    if (!document.hidden) await ask();
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
  }
}

export function keepContact() {
  setInterval(showContact, SHOW_EVERY_MS); // ages grow, also while a question hangs
  document.addEventListener("visibilitychange", () => {
    showContact();
    if (!document.hidden) ask();
  });
  askAgainAndAgain();
}
