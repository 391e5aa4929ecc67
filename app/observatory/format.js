// Figures and words, the same everywhere on the page.

const COUNT = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const count = (value) => COUNT.format(value);
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** A share from 0 to 1; what is not 0 is never shown as 0. */
export function percent(share) {
  if (share > 0 && share < 0.001) return "under 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

export function seconds(value) {
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function nats(value) {
  return `${value === 0 || value >= 0.001 ? Number(value.toFixed(4)) : value.toExponential(1)} nats`;
}

/** A moment in seconds since 1970 as the time of day, or with its date where that is not today's. */
export function moment(at) {
  const day = new Date(at * 1000);
  return day.toDateString() === new Date().toDateString() ? CLOCK.format(day) : DAY.format(day);
}

export function ago(at, now) {
  const passed = Math.max(0, now - at);
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return `${Math.floor(passed / 86_400)} d ago`;
}

export const brief = (digest, length = 10) => (digest.length > length + 1 ? `${digest.slice(0, length)}…` : digest);

/** Whose answers, as part of a sentence. */
export const ORIGINS = { client: "clients", canary: "canaries", shadow: "shadows" };

export const CAUSES = {
  co_batched: "co-batched",
  cache_state: "cache state",
  other_replica: "other replica",
  unexplained: "unexplained",
};

export const CAUSE_MEANINGS = {
  co_batched: "other requests shared the engine with one of the two",
  cache_state: "one of the two found more of its prompt in the prefix cache",
  other_replica: "another replica of the same posture answered",
  unexplained: "nothing that is known differed",
};

export const MARGINS = { tie: "tie", near: "near", clear: "clear", unknown: "not known" };

export const MARGIN_MEANINGS = {
  tie: "a tie: rounding alone can flip it",
  near: "near: more than rounding usually moves",
  clear: "clear: rounding does not explain it; suspect weights, template or seed",
  unknown: "the margin is not known: that takes logprobs at a known place, of answers that take the likeliest token",
};

/** Whether the reference was known by its digests alone when an output was compared with it; then nothing was measured. */
export const byDigests = (output) => output.similarity === null && output.fork_characters === null;

/** Why an output has no margin: the reason that holds, and what would bring one. `sure`: its mode is deterministic. */
export function marginMissing(output, state, sure) {
  if (byDigests(output)) {
    return "the margin is not known: the reference was known by its digests only, read back from the ledger; "
      + "once an answer has repeated the reference, outputs that are new get margins again";
  }
  if (sure || output.origin !== "client") {
    return "the margin is not known: no logprobs came of the fork (REPRISE_EVIDENCE asks for them), or the answers were sampled, of which a margin says nothing";
  }
  const shadows = state.shadow_rate ? `REPRISE_SHADOW_RATE, here ${state.shadow_rate}` : "REPRISE_SHADOW_RATE, off here";
  return "the margin is not known: these answers came without logprobs at the fork, which nobody adds to standard requests of clients, "
    + `or were sampled. Canaries bring margins, and so do repeats by the gateway (${shadows})`;
}

/** How close a margin in nats is; `limits` are the gateway's. */
export function closeness(margin, limits) {
  if (margin === null || margin === undefined) return "unknown";
  if (margin <= limits.tie) return "tie";
  return margin <= limits.near ? "near" : "clear";
}

export function named(names, label) {
  return names[label] ?? label.replaceAll("_", " ");
}
