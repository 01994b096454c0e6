// The registry's HTTP API, as far as the page needs it. Paths are relative, so that the page works behind a proxy.

const ANSWER_WITHIN_MS = 15000;
const TYPE = "application/vnd.schemaregistry.v1+json";

/** An answer of the registry other than 200. `status` is 0 if there was none. */
export class RegistryFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = body === undefined ? { Accept: TYPE } : { Accept: TYPE, "Content-Type": TYPE };
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let response;
  try {
    response = await fetch(`../${path}`, options);
  } catch (error) {
    throw new RegistryFailure(0, `The registry does not answer: ${error.message}`);
  }
  const text = await response.text();
  if (response.ok) return JSON.parse(text);
  let message = text;
  try {
    message = JSON.parse(text).message;
  } catch { /* not from the registry itself */ }
  throw new RegistryFailure(response.status, message || `HTTP status ${response.status}`);
}

/** Returns the answer, or `instead` if the registry knows nothing of that name. */
async function askOr(instead, path) {
  try {
    return await ask(path);
  } catch (error) {
    if (error.status === 404) return instead;
    throw error;
  }
}

const of = encodeURIComponent;
const inContext = (subject) => (subject.startsWith(":.") ? `&subject=${of(subject)}` : "");

export const subjects = (deleted) => ask(`subjects?subjectPrefix=${of(":*:")}&deleted=${deleted}`);
export const contexts = () => askOr(["."], "contexts");
export const versions = (subject) => ask(`subjects/${of(subject)}/versions?deleted=true`);
export const liveVersions = (subject) => askOr([], `subjects/${of(subject)}/versions`);
export const version = (subject, number) => ask(`subjects/${of(subject)}/versions/${number}?deleted=true`);
export const referrers = (subject, number) => askOr([], `subjects/${of(subject)}/versions/${number}/referencedby`);
export const versionsOfId = (id, subject) => askOr([], `schemas/ids/${id}/versions?deleted=true${inContext(subject)}`);
export const globalConfig = () => ask("config");
export const globalMode = () => askOr(null, "mode");
export const ownConfig = (subject) => askOr(null, `config/${of(subject)}`);
export const config = (subject) => ask(`config/${of(subject)}?defaultToGlobal=true`);
export const ownMode = (subject) => askOr(null, `mode/${of(subject)}`);
export const mode = (subject) => askOr(null, `mode/${of(subject)}?defaultToGlobal=true`);
export const journal = () => askOr(null, "journal");
export const topics = () => ask("ui/topics");

/** Returns whether a schema is compatible, with the reasons. `against` is a version, or "" for those of the level. */
export function check(subject, against, schema) {
  const path = `compatibility/subjects/${of(subject)}/versions${against && `/${against}`}?verbose=true`;
  return ask(path, schema);
}
