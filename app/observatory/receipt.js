// The way to a receipt, where there is one: a link that leads nowhere would only raise questions.

import { receiptAddress } from "./api.js";
import { h } from "./dom.js";
import { brief, count } from "./format.js";

/** A link to a request's receipt, or why none can be had; `at` is when it was answered, in seconds since 1970. */
export function receiptCell(requestId, isKept, at, state) {
  if (isKept) return h("a", { href: receiptAddress(requestId), target: "_blank", rel: "noopener", title: requestId }, brief(requestId, 10));
  const reason = !state.receipts
    ? "no receipt: REPRISE_RECEIPTS=0 keeps none"
    : at < state.started
      ? "no receipt: from an earlier process"
      : `no receipt: not among the last ${count(state.receipts)} that this process keeps`;
  return h("span", { class: "faint", title: requestId }, reason);
}
