// The table of rates: one row for each mode and model, with its bound and its last minutes.

import { byId, h, keyed, s, setText, show } from "./dom.js";
import { count, moment, percent, plural } from "./format.js";
import { drawSparkline, Recent, sparkline } from "./recent.js";

const BAR = 180;

/** The rows of a scope. A mode without figures has one too: what was never measured is worth seeing, and nothing moves. */
export function rowsOf(state, scope) {
  const rows = new Map();
  const used = new Set();
  for (const mode of state.modes) {
    const key = `${mode.mode}|${mode.model}`;
    used.add(mode.mode);
    if (mode.origin === scope) rows.set(key, mode);
    else if (!rows.has(key)) rows.set(key, nothing(mode, scope));
  }
  for (const mode of state.known_modes) if (!used.has(mode)) rows.set(`${mode}|`, nothing({ model: "", mode }, scope));
  const order = (row) => state.known_modes.indexOf(row.mode) + 1 || state.known_modes.length + 1;
  return [...rows.values()].sort((a, b) => order(a) - order(b) || a.model.localeCompare(b.model));
}

function nothing({ model, mode }, origin) {
  return {
    model, mode, origin, matched: 0, diverged: 0, incomparable: 0, upper_bound: 1, sentence: "nothing compared yet",
    causes: {}, margins: {}, pairs: 0, pairs_equal: 0,
  };
}

export function drawRates(state, scope, recent) {
  const rows = rowsOf(state, scope);
  const table = byId("rates");
  const full = recent.now - recent.since > 595;
  setText(byId("rates-window"), full ? "Last 10 min" : `Since ${moment(recent.since)}`);
  keyed(table.tBodies[0], rows, (row) => `${row.mode}|${row.model}`, createRow, (node, row) => {
    updateRow(node, row, state, recent.of(Recent.key({ ...row, origin: scope })));
  });
  const empty = byId("rates-empty");
  show(empty, state.modes.length === 0);
  setText(
    empty,
    "Nothing has been repeated yet, so nothing could be compared. Send a request twice, or let the gateway ask: "
      + "REPRISE_CANARY_INTERVAL=30 sends a canary every 30 s, REPRISE_SHADOW_RATE=0.01 repeats one request in a hundred.",
  );
  drawAsides(state);
}

function createRow(row) {
  const link = h("a", { href: `#/forks?mode=${encodeURIComponent(row.mode)}` }, row.mode);
  return h(
    "tr",
    { role: "row" },
    h("th", { scope: "row", role: "rowheader" }, link, h("small", { title: row.model }, row.model)),
    h("td", { role: "cell", "data-name": "Diverged" }, h("strong"), h("small")),
    h(
      "td",
      { role: "cell", "data-name": "Rate and bound", class: "rate" },
      s("svg", { class: "bound", width: BAR, height: 10, viewBox: `0 0 ${BAR} 10`, "aria-hidden": "true" }),
      h("small"),
    ),
    h("td", { role: "cell", "data-name": "Recently" }, sparkline(), h("small")),
    h("td", { role: "cell", "data-name": "Equal pairs", class: "number" }, h("span"), h("small")),
  );
}

function updateRow(node, row, state, lately) {
  const [, diverged, rate, recently, pairs] = node.cells;
  const compared = row.matched + row.diverged;
  const alarm = row.diverged > 0 && state.deterministic_modes.includes(row.mode);
  node.dataset.level = compared === 0 ? "none" : alarm ? "bad" : row.diverged ? "seen" : "ok";
  setText(diverged.children[0], compared ? count(row.diverged) : "–");
  setText(diverged.children[1], compared ? `of ${count(compared)}` : "");
  drawBound(rate.children[0], row, compared);
  setText(rate.children[1], compared ? row.sentence.replace(/^[^,]*, /, "") : row.sentence);
  rate.title = compared ? row.sentence : "";
  drawSparkline(recently.children[0], lately.buckets);
  setText(recently.children[1], lately.compared ? `${count(lately.diverged)} of ${count(lately.compared)}` : "none");
  setText(pairs.children[0], row.pairs ? percent(row.pairs_equal / row.pairs) : "–");
  setText(pairs.children[1], row.pairs ? `of ${count(row.pairs)}` : "");
}

/** The measured rate, solid, and what the bound leaves open, pale, on a scale from 0 to 100 %. */
function drawBound(svg, row, compared) {
  const rate = compared ? row.diverged / compared : 0;
  const bound = compared ? row.upper_bound : 0;
  svg.replaceChildren(
    s("rect", { class: "ground", x: 0, y: 3, width: BAR, height: 4 }),
    s("rect", { class: "open", x: 0, y: 2, width: Math.max(compared ? 1 : 0, bound * BAR), height: 6 }),
    s("rect", { class: "rate", x: 0, y: 2, width: row.diverged ? Math.max(1.5, rate * BAR) : 0, height: 6 }),
  );
}

function drawAsides(state) {
  const skipped = Object.entries(state.skipped).sort((a, b) => b[1] - a[1]);
  const reasons = skipped.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(", ");
  setText(byId("skipped"), skipped.length ? `Compared to nothing: ${reasons}.` : "");
  const crossed = Object.entries(state.crossed)
    .map(([kind, { match = 0, diverged = 0 }]) => [kind, diverged, match + diverged])
    .filter(([, , all]) => all > 0)
    .map(([kind, diverged, all]) => `${count(diverged)} of ${count(all)} ${kind === "posture" ? "on another posture" : "in another mode"}`);
  setText(byId("crossed"), crossed.length ? `The same request answered otherwise: ${crossed.join(", ")}.` : "");
}

/** The sentence on top: is everything fine? Worst first. */
export function headline(state, recent) {
  const sums = state.modes.filter((mode) => mode.origin === "all");
  const total = (rows, name) => rows.reduce((sum, row) => sum + row[name], 0);
  const alarms = sums.filter((row) => state.deterministic_modes.includes(row.mode));
  const deterministic = total(alarms, "matched") + total(alarms, "diverged");
  const healthy = state.replicas.filter((replica) => replica.healthy).length;
  const dropped = Object.values(state.ledger.dropped).reduce((sum, number) => sum + number, 0);
  const part = (some, all) => (all ? `${count(some)} of ${count(all)} diverged` : "nothing compared");
  const lately = sums.map((row) => recent.of(Recent.key(row)));
  const facts = [
    ["replicas", `${healthy} of ${state.replicas.length} healthy`, healthy < state.replicas.length],
    ["deterministic modes", part(total(alarms, "diverged"), deterministic), total(alarms, "diverged") > 0],
    ["recently", part(total(lately, "diverged"), total(lately, "compared")), false],
    ["ledger", state.ledger.problem ? "away" : dropped ? `${plural(dropped, "answer")} dropped` : "writes", Boolean(state.ledger.problem || dropped)],
    ["queue", plural(state.ledger.queued, "observation"), false],
  ];
  return { ...verdict(), facts };

  function verdict() {
    if (!healthy) return { level: "bad", text: "No replica is healthy: deterministic or not, nothing is served." };
    const bad = alarms.filter((row) => row.diverged);
    if (bad.length) {
      const modes = [...new Set(bad.map((row) => row.mode))].join(", ");
      const fresh = total(bad.map((row) => recent.of(Recent.key(row))), "diverged");
      const when = fresh ? `${count(fresh)} since ${moment(recent.since)}` : `none since ${moment(recent.since)}`;
      return { level: "bad", text: `Answers diverged in a deterministic mode (${modes}): ${count(total(bad, "diverged"))} since the gateway started, ${when}.` };
    }
    if (healthy < state.replicas.length) return { level: "warn", text: `${plural(state.replicas.length - healthy, "replica")} out.` };
    if (state.ledger.problem) return { level: "warn", text: "The ledger is away; verdicts go on from memory." };
    if (dropped) return { level: "warn", text: "Some answers did not reach the ledger." };
    if (deterministic) return { level: "ok", text: `No answer diverged in a deterministic mode, of ${count(deterministic)} compared.` };
    if (sums.length) return { level: "idle", text: "No deterministic mode has been compared yet." };
    return { level: "idle", text: "Nothing has been compared yet." };
  }
}

/** What was fine may not be so any more: old figures must not look like news. */
export function drawSilence(state) {
  byId("headline").dataset.level = "warn";
  setText(byId("verdict"), state ? `No answer from the gateway; all figures are those of ${moment(state.now)}.` : "No answer from the gateway yet.");
}

export function drawHeadline(state, recent) {
  const { level, text, facts } = headline(state, recent);
  byId("headline").dataset.level = level;
  setText(byId("verdict"), text);
  keyed(
    byId("facts"), facts, ([name]) => name,
    ([name]) => h("li", {}, h("span", {}, name), " ", h("b")),
    (node, [, value, attention]) => {
      node.dataset.level = attention ? "attention" : "";
      setText(node.querySelector("b"), value);
    },
  );
}
