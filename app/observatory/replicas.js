// The replicas: what each is, what it honours and why not, and its timeline.

import { ask } from "./api.js";
import { byId, h, keyed, s, setText, show } from "./dom.js";
import { brief, moment, plural, seconds } from "./format.js";
import { receiptCell } from "./receipt.js";
import { drawTimeline } from "./timeline.js";

const KEPT_SECONDS = 3600;
const AT_FIRST = 2000;
const BEYOND_THE_LAST = 1e15;
const PAUSE_SECONDS = 30;
const LISTED = 8;

/** Keeps what the probes and the guards said, and asks for what is new only. */
export class Replicas {
  constructor() {
    this.samples = new Map();
    this.logs = new Map();
    this.postures = new Map();
    this.since = 0;
  }

  /** Asks for what happened since the last time. Throws Failure; a guard that cannot be asked is only left out. */
  async update(state) {
    for (const { replica, posture } of state.replicas) this.notePosture(replica, posture, state.now);
    const found = await ask(["timeline"], { since: this.since });
    for (const [name, samples] of Object.entries(found)) {
      const kept = [...(this.samples.get(name) ?? []), ...samples].filter((sample) => sample.at > state.now - KEPT_SECONDS);
      this.samples.set(name, kept);
      for (const sample of samples) this.since = Math.max(this.since, sample.at);
    }
    const guarded = state.replicas.filter((replica) => replica.guarded && replica.healthy);
    await Promise.all(guarded.map(({ replica }) => this.readLog(replica, state.now)));
  }

  notePosture(name, digest, now) {
    const known = this.postures.get(name);
    if (known?.digest !== digest) this.postures.set(name, { digest, changed: known ? now : null });
  }

  async readLog(name, now) {
    const log = this.logs.get(name) ?? { epoch: null, next: null, phases: new Map(), again: 0 };
    this.logs.set(name, log);
    if (now < log.again) return;
    try {
      // The log of a busy engine is long, so only its end is read at first.
      log.next ??= (await ask(["admissions", name], { after: BEYOND_THE_LAST, exclusive: true })).next - AT_FIRST;
      const running = [...log.phases.values()].filter((phase) => phase.ended === null);
      const after = Math.max(0, Math.min(log.next, ...running.map((phase) => phase.sequence)) - 1);
      takeIn(log, await ask(["admissions", name], { after, exclusive: true }), now);
    } catch {
      log.again = now + PAUSE_SECONDS;
      log.phases.clear();
      log.next = null;
    }
  }

  phases(name) {
    const log = this.logs.get(name);
    return log && log.next !== null ? [...log.phases.values()] : null;
  }
}

/** A guard's intervals are on its own clock, whose beginning it tells; from there they are moments like all others. */
function takeIn(log, said, now) {
  if (log.epoch !== said.epoch) log.phases.clear();
  const began = Date.parse(said.started) / 1000;
  const moment = (micro) => (micro === null ? null : began + micro / 1e6);
  for (const row of said.admissions) {
    const [asked, granted, ended] = [row.asked_us, row.granted_us, row.ended_us].map(moment);
    log.phases.set(row.sequence, { sequence: row.sequence, request: row.request, asked, granted, ended, peak: row.peak, receipt: row.receipt });
  }
  for (const [sequence, phase] of log.phases) {
    if (phase.ended !== null && phase.ended < now - KEPT_SECONDS) log.phases.delete(sequence);
  }
  log.epoch = said.epoch;
  log.next = said.next;
}

export function drawReplicas(state, replicas, span) {
  drawPostures(state);
  const again = () => drawReplicas(state, replicas, span);
  const box = byId("replicas");
  keyed(box, state.replicas, (replica) => replica.replica, (replica) => createCard(replica, again), (card, replica) => {
    const name = replica.replica;
    updateCard(card, replica, replicas.postures.get(name));
    const phases = replica.guarded ? replicas.phases(name) : null;
    const svg = card.querySelector("svg.timeline");
    const words = drawTimeline(svg, name, replicas.samples.get(name) ?? [], phases, state.now - span, state.now);
    setText(card.querySelector(".words"), words);
    const details = card.querySelector("details");
    show(details, replica.guarded);
    if (details.open) drawPhases(details, phases ?? [], state);
  });
}

function drawPostures(state) {
  const byModel = new Map();
  for (const replica of state.replicas.filter((each) => each.healthy)) {
    for (const model of replica.models) byModel.set(model, (byModel.get(model) ?? new Set()).add(replica.posture));
  }
  const mixed = [...byModel].filter(([, postures]) => postures.size > 1);
  const warning = byId("postures");
  show(warning, mixed.length > 0);
  const which = mixed.map(([model, postures]) => `${model} is served on ${postures.size} postures`).join(", ");
  setText(warning, mixed.length ? `${which}: they are never one pool, and answers are never compared across them as repeats.` : "");
}

function createCard(replica, redraw) {
  return h(
    "article", { class: "replica", "aria-label": `Replica ${replica.replica}` },
    h(
      "div", { class: "who" },
      h("h3", {}, h("span", { class: "dot" }), " ", replica.replica, " ", h("span", { class: "health" })),
      h("p", { class: "trouble" }),
      h("dl", { class: "plain" }),
    ),
    h(
      "div", { class: "when" },
      s("svg", { class: "timeline", role: "img" }),
      h("p", { class: "words" }),
      h("p", { class: "mitigations" }),
      h("ul", { class: "refused", "aria-label": "Mitigations that are not honoured" }),
      h("details", { ontoggle: redraw }, h("summary", {}, "Exclusive phases, the last first"), phaseTable()),
    ),
  );
}

function phaseTable() {
  const titles = ["Granted", "Waited", "Ran", "Beside it", "Request"];
  const head = h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)));
  return h("table", { class: "phases" }, h("thead", {}, head), h("tbody"));
}

function updateCard(card, replica, posture) {
  card.dataset.level = replica.healthy ? (replica.problem ? "warn" : "ok") : "bad";
  setText(card.querySelector(".health"), replica.healthy ? "healthy" : "out");
  const trouble = card.querySelector(".trouble");
  show(trouble, Boolean(replica.problem));
  setText(trouble, replica.problem ?? "");
  const wait = replica.expected_wait_seconds;
  const facts = [
    ["posture", brief(replica.posture, 14) + (posture?.changed ? `, changed ${moment(posture.changed)}` : ""), replica.posture],
    ["engine", `vLLM ${replica.vllm_version}, ${replica.guarded ? "guarded" : "without the guard"}`, ""],
    ["models", replica.models.join(", ") || "none", ""],
    ["leases", `${replica.leases - replica.exclusive_leases} shared, ${replica.exclusive_leases} exclusive`, "Requests that this gateway has on it now."],
    ["waiting", `${replica.waiting.shared} shared, ${replica.waiting.exclusive} exclusive`, "Of all its clients, at the last probe."],
    ["wait now", `${seconds(wait.shared ?? 0)} shared, ${seconds(wait.exclusive ?? 0)} exclusive`, "An estimate for a request that came now."],
  ];
  keyed(
    card.querySelector("dl"), facts, ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd")),
    (node, [, value, title]) => {
      setText(node.lastChild, value);
      node.title = title;
    },
  );
  drawMitigations(card, Object.entries(replica.mitigations));
}

function drawMitigations(card, mitigations) {
  const words = (name) => name.replaceAll("_", " ");
  const honoured = mitigations.filter(([, answer]) => answer.startsWith("yes")).map(([name]) => words(name));
  setText(card.querySelector(".mitigations"), honoured.length ? `Honours ${honoured.join(", ")}.` : "Honours no mitigation.");
  const refused = mitigations.filter(([, answer]) => !answer.startsWith("yes"));
  keyed(
    card.querySelector(".refused"), refused, ([name]) => name,
    ([name]) => h("li", {}, h("b", {}, words(name)), " ", h("span")),
    (node, [, answer]) => setText(node.lastChild, answer),
  );
}

function drawPhases(details, phases, state) {
  const last = phases.slice(-LISTED).reverse();
  keyed(
    details.querySelector("tbody"), last, (phase) => phase.sequence.toString(),
    () => h("tr", {}, Array.from({ length: 5 }, () => h("td"))),
    (row, phase) => {
      const [granted, waited, ran, beside, request] = row.cells;
      setText(granted, moment(phase.granted));
      setText(waited, seconds(phase.granted - phase.asked));
      setText(ran, phase.ended === null ? "runs" : seconds(phase.ended - phase.granted));
      setText(beside, phase.peak === 1 ? "nothing" : plural(phase.peak - 1, "request"));
      // A receipt comes with the request's end, and goes when others have come after it.
      if (row.dataset.receipt === `${phase.receipt}|${phase.ended}`) return;
      row.dataset.receipt = `${phase.receipt}|${phase.ended}`;
      request.replaceChildren(requestCell(phase, state));
    },
  );
}

function requestCell({ request, receipt, ended }, state) {
  if (request === null) return h("span", { class: "faint" }, "not through a gateway");
  if (ended === null && !receipt) return h("span", { class: "faint" }, "no receipt before its end");
  return receiptCell(request, receipt, ended ?? state.now, state);
}
