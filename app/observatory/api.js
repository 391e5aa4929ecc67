// What the gateway is asked. Addresses are relative to this file, so that the page works under a proxy's prefix too.

const ROOT = new URL("./", import.meta.url);
const PATIENCE_MS = 10_000;

/** Why an answer did not come: `status` is 0 where the gateway could not be reached at all. */
export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks for `api/` and the parts of a path, each of them escaped. Throws Failure. */
export async function ask(parts, query = {}) {
  const url = new URL(["api", ...parts.map(encodeURIComponent)].join("/"), ROOT);
  for (const [name, value] of Object.entries(query)) if (value !== null && value !== "") url.searchParams.set(name, value);
  let answer;
  try {
    answer = await fetch(url, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Failure(0, late ? "The gateway did not answer within 10 s." : "The gateway cannot be reached.");
  }
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Failure(answer.status, `The gateway answered ${answer.status} with something that is no JSON.`);
  }
  if (!answer.ok) throw new Failure(answer.status, body?.error?.message ?? `The gateway answered ${answer.status}.`);
  return body;
}

/** Where the signed receipt of a request is. */
export function receiptAddress(requestId) {
  return new URL(`../v1/determinism/receipts/${encodeURIComponent(requestId)}`, ROOT).href;
}
