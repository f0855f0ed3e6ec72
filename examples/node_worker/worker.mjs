// A Fencegate worker in Node 18 or newer, without dependencies; README.md says how to run it.
// Imported, it runs your own handlers:  await work({ tools: { node_charge: async (job) => … } })
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { performance } from "node:perf_hooks";
import { pathToFileURL } from "node:url";

const DRIFT = 0.001; // by how much this clock may run slower than the database's
const REQUEST_MS = 5_000; // longest wait for an answer about leases
const POLL_MS = 500;
const LEAST_MS = 1_000; // a command that may take less than this is not begun
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (event, fields) => console.log(JSON.stringify({ event, ...fields }));

export class LeaseLost extends Error {} // somebody else may have the work: stop
export class OwnershipUnknown extends Error {} // nothing was sent, the lease may be over
export class Refused extends Error {} // no repetition helps

async function send({ url, key }, method, path, body, timeoutMs, { headers = {}, ended } = {}) {
  const call = new AbortController();
  const stop = () => call.abort();
  const limit = setTimeout(stop, timeoutMs);
  ended?.addEventListener("abort", stop, { once: true });
  try {
    const bearer = key ? { Authorization: `Bearer ${key}` } : {};
    const answer = await fetch(url + path, {
      method,
      headers: { ...headers, ...bearer, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: call.signal,
    });
    const text = await answer.text();
    let document = null;
    try { document = JSON.parse(text); } catch { /* an upstream may answer anything */ }
    return { status: answer.status, headers: answer.headers, text, document };
  } finally {
    clearTimeout(limit);
    ended?.removeEventListener("abort", stop);
  }
}

async function ask(gateway, path, body) {
  const answer = await send(gateway, "POST", path, body, REQUEST_MS);
  if (answer.status < 300) return answer.document;
  throw new Error(`${path}: ${answer.status} ${answer.document?.detail ?? answer.text}`);
}

class Job {
  constructor(gateway, granted, askedAt) {
    Object.assign(this, granted, { gateway });
    this.abort = new AbortController();
    this.ended = this.abort.signal; // stop your own work when it says so
    this.renewed(askedAt, granted.remaining_ms);
  }

  // Counted from before the request left, since the database counted from some moment after that.
  renewed(askedAt, remainingMs) {
    this.trustedUntil = askedAt + remainingMs * (1 - DRIFT);
    this.beatAt = askedAt + (this.terms.heartbeat_s + this.terms.jitter_s * Math.random()) * 1000;
  }

  get trustedMs() { return this.trustedUntil - performance.now(); }

  lost(reason) {
    if (this.ended.aborted) return;
    say("heartbeat_lost", { reason, job: this.lease.job, fence: this.lease.fence });
    this.abort.abort(new LeaseLost(`the lease is lost: ${reason}`));
  }

  // What makes a request a command of this job. The step names it: the same in every attempt.
  headers(step) {
    const { job, fence, entity } = this.lease;
    return { "Idempotency-Key": `tool-job:${job}:${step}`, "X-Execution-Fence": String(fence),
      "X-Execution-Entity": entity };
  }

  // Send a command through the gateway; the upstream's final answer, fresh or replayed.
  async command(step, method, path, body, timeoutMs = 30_000) {
    const until = performance.now() + 2 * timeoutMs;
    for (let pause = 250; ; pause *= 2) {
      this.ended.throwIfAborted();
      const timeout = Math.min(timeoutMs, this.trustedMs); // it must end while the lease is ours
      if (timeout < LEAST_MS) throw new OwnershipUnknown(`the lease is sure for ${timeout} ms only`);
      const about = { headers: this.headers(step), ended: this.ended };
      // No answer: what became of it is not known here, and the same key asks for it.
      const answer = await send(this.gateway, method, path, body, timeout, about).catch(() => null);
      this.ended.throwIfAborted();
      const type = String(answer?.document?.type ?? "");
      const problem = type.startsWith("urn:fencegate:problem:") ? answer.document : null;
      if (/:fence-(stale|not-held)$/.test(type)) this.lost("taken");
      this.ended.throwIfAborted();
      const final = answer && !problem && answer.headers.get("gateway-outcome") !== "not-executed";
      if (final) return answer;
      if (problem?.retry === "never") throw new Refused(`${type}: ${problem.detail}`);
      if (performance.now() > until) throw new Error(`${step}: ${type || answer?.status || "no answer"}`);
      await sleep(pause);
    }
  }
}

// Claim and run jobs until `signal` aborts; then let handlers end within `drainMs`.
export async function work({ tools, url = process.env.FENCEGATE_URL ?? "http://127.0.0.1:8080",
  key = process.env.FENCEGATE_KEY, worker = `${hostname()}:${process.pid}`, concurrency = 4,
  signal = new AbortController().signal, drainMs = 30_000 }) {
  const gateway = { url, key };
  const running = new Map(); // job → its end
  let stopping = false;

  async function beat(jobs) {
    const askedAt = performance.now();
    const wish = { worker, leases: jobs.map((job) => job.lease) };
    try {
      const { leases } = await ask(gateway, "/v1/jobs/heartbeat", wish);
      leases.forEach((said, at) =>
        said.lost ? jobs[at].lost(said.lost) : jobs[at].renewed(askedAt, said.remaining_ms));
    } catch (error) { // no answer: what is sure of the lease goes on shrinking
      say("heartbeat_failed", { why: String(error) });
    }
    for (const job of jobs) if (job.trustedMs <= 0) job.lost("no-answer");
  }

  async function beats() {
    for (; !beats.over; await sleep(100)) {
      const ours = [...running.keys()].filter((job) => !job.ended.aborted);
      if (ours.some((job) => performance.now() >= job.beatAt)) await beat(ours);
    }
  }

  async function end(job, how) {
    const about = { job: job.lease.job, fence: job.lease.fence };
    for (;;) {
      try {
        const ends = [{ lease: job.lease, ...how }];
        const [said] = (await ask(gateway, "/v1/jobs/end", { worker, ends })).ends;
        if (said.rejected) return say("result_rejected", { ...about, reason: said.rejected });
        return say("job_finished", { ...about, how: how.how, state: said.state });
      } catch (error) { // it may be sent again; once the lease is over nobody would take it
        if (job.trustedMs <= 0) return say("end_not_recorded", { ...about, why: String(error) });
        await sleep(POLL_MS);
      }
    }
  }

  async function run(job) {
    let how;
    try {
      if (!Number.isSafeInteger(job.lease.fence)) throw new Refused("a fence above 2^53");
      how = { how: "completed", result: (await tools[job.lease.tool](job)) ?? null };
    } catch (error) {
      if (stopping && job.ended.aborted) how = { how: "handed-back" };
      else how = { how: "failed", error: String(error), retry: !(error instanceof Refused) };
    }
    await end(job, how);
    running.delete(job);
  }

  async function claim(limit) {
    const wish = { worker, claim: randomUUID(), limit, tools: Object.keys(tools) };
    for (let tries = 2; ; tries--) { // after a lost answer the same claim gives the same leases
      const askedAt = performance.now();
      try {
        const { leases } = await ask(gateway, "/v1/jobs/claim", wish);
        return leases.map((granted) => new Job(gateway, granted, askedAt));
      } catch (error) {
        say("claim_failed", { why: String(error) });
        if (tries === 1) return [];
      }
    }
  }

  const beating = beats();
  while (!signal.aborted) {
    const free = concurrency - running.size;
    const jobs = free > 0 ? await claim(free) : [];
    for (const job of jobs) {
      const { job: id, fence, attempt } = job.lease;
      say("job_claimed", { job: id, fence, attempt });
      running.set(job, run(job));
    }
    if (!free || jobs.length < free) await sleep(POLL_MS * (0.5 + Math.random()));
  }
  const out = () => Promise.all(running.values());
  const late = setTimeout(() => {
    stopping = true;
    for (const job of running.keys()) job.abort.abort(new Error("the worker stops"));
  }, drainMs);
  await out(); // beating until the last handler is out
  clearTimeout(late);
  beats.over = true;
  await beating;
}

// One tool: charge an invoice at the example API.
async function charge(job) {
  const { invoice, amount, currency } = job.payload;
  const path = `/legacy/v1/invoices/${encodeURIComponent(invoice)}/capture`;
  const answer = await job.command("capture", "POST", path, { amount, currency });
  if (answer.status !== 201) throw new Refused(`${answer.status}: ${answer.text}`);
  return { capture: answer.document.id };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const stop = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"]) process.once(name, () => stop.abort()); // twice: at once
  await work({ tools: { node_charge: charge }, signal: stop.signal });
}
