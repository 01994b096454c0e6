// Documents of the audit service that are asked for again and again, and how old the last good answer is.
//
// Invariants:
// A. Ages are differences of this browser's clocks, and of the service's clock, never of one to the other: a browser
//    whose clock is wrong by a day shows right ages.
// B. An answer is fresh only if the service's judgement has gone on since (`Audit-Time`): answers out of a cache between
//    browser and service grow old, too.
// C. A document is shown as fresh only while its source answers: after a failure it is old at once.

const ANSWER_WITHIN_MS = 28_000; // longer than the service takes to say why it has no answer
const LONG_NUMBER = /[[:,]\s*-?\d{16}/;

/** The service answered with an error, or with what is no document. `status` is 0 without an answer. */
export class ContactError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Returns two clocks: one that goes on while the machine sleeps, and one that nobody sets. */
const clocks = () => ({ wall: Date.now(), steady: performance.now() });
const elapsedMs = (since) => Math.max(0, Date.now() - since.wall, performance.now() - since.steady);

/** Returns the JSON value of a text. Integers that a Number cannot hold become BigInt, where the browser tells them. */
function parsed(text) {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value);
}

function failureOf(error) {
  if (error instanceof ContactError) return error;
  if (error.name === "TimeoutError") return new ContactError(`no answer within ${ANSWER_WITHIN_MS / 1000} s`);
  if (error.name === "AbortError") return error;
  return new ContactError(error instanceof SyntaxError ? "the answer is not complete JSON" : error.message);
}

async function reasonOf(response, path) {
  try {
    const { error } = JSON.parse(await response.text());
    if (typeof error === "string") return `${error} (HTTP status ${response.status})`;
  } catch {
    // The status has to do.
  }
  return `${path}: HTTP status ${response.status}`;
}

/** Returns { document, etag, auditMs } of a path; the document is null if it is still that of `etag`. Raises ContactError. */
export async function ask(path, { etag = null, signal = null, withinMs = ANSWER_WITHIN_MS } = {}) {
  const timeout = AbortSignal.timeout(withinMs);
  try {
    const response = await fetch(path, {
      cache: "no-store",
      headers: etag ? { "If-None-Match": etag } : {},
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    const auditMs = Number(response.headers.get("Audit-Time") || NaN);
    if (response.status === 304 && etag) return { document: null, etag, auditMs };
    if (!response.ok) throw new ContactError(await reasonOf(response, path), response.status);
    return { document: parsed(await response.text()), etag: response.headers.get("ETag"), auditMs };
  } catch (error) {
    throw failureOf(error);
  }
}

/** A document that is asked for again and again. `read` makes the page's form of it, and raises if it has another form. */
export class Source {
  constructor(path, { everyMs, oldAfterMs, read, onChange }) {
    Object.assign(this, { path, everyMs, oldAfterMs, read, onChange });
    this.value = null;
    this.etag = null;
    this.failure = null;
    /** Service's time of the last judgement that was answered, and the clocks of the request that first brought it. */
    this.auditMs = null;
    this.seenAt = null;
    this.startedAt = clocks();
    this.isStopped = false;
    this.turn = 0;
  }

  /** Milliseconds since the last good answer; null without one. */
  get ageMs() {
    return this.seenAt === null ? null : elapsedMs(this.seenAt);
  }

  get isOld() {
    return this.seenAt !== null && (this.failure !== null || this.ageMs > this.oldAfterMs);
  }

  /** What went wrong, as a sentence; empty if nothing did. */
  get problem() {
    if (this.failure) return this.failure;
    if (this.seenAt === null) return elapsedMs(this.startedAt) > this.oldAfterMs ? "no answer yet" : "";
    return this.isOld ? "the answers are not new: the request hangs, or a cache stands between" : "";
  }

  /** The present time of the service, as far as its last answer goes. */
  get serviceNowMs() {
    return this.auditMs === null ? null : this.auditMs + this.ageMs;
  }

  async refresh() {
    const began = clocks(), turn = ++this.turn;
    try {
      const { document, etag, auditMs } = await ask(this.path, { etag: this.etag });
      if (turn !== this.turn) return; // a later question has been asked meanwhile
      if (!Number.isFinite(auditMs)) throw new ContactError("the answer has no Audit-Time: another service, or another version?");
      const value = document === null ? this.value : this.read(document, auditMs);
      if (this.auditMs === null || auditMs !== this.auditMs) Object.assign(this, { auditMs, seenAt: began }); // invariant B
      Object.assign(this, { etag, failure: null });
      const isNew = document !== null;
      this.value = value;
      this.onChange(isNew);
    } catch (error) {
      if (turn !== this.turn) return;
      this.failure = String(error.message || error);
      this.etag = null;
      this.onChange(false);
    }
  }

  /** Asks again and again, `everyMs` after each answer, until `stop`. */
  async run() {
    while (!this.isStopped) {
      await this.refresh();
      await new Promise((resolve) => setTimeout(resolve, this.everyMs));
    }
  }

  /** Ends the questions. An answer that is under way changes nothing any more. */
  stop() {
    this.isStopped = true;
    this.turn++;
    this.onChange = () => {};
  }
}
