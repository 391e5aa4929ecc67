// The table of rates: one row for each mode and model, with its bound and its last minutes.

import { ask } from "./api.js";
import { byId, h, keyed, s, setText, show } from "./dom.js";
import { count, moment, percent, plural, seconds } from "./format.js";
import { drawSparkline, Recent, sparkline } from "./recent.js";

const BAR = 180;

const keyOf = (row) => `${row.mode}|${row.model}`;
const places = new Map();

/** The figures of those models and modes of which anything was compared, of whatever origin. */
function measured(state) {
  const known = new Set(state.modes.filter((row) => row.matched + row.diverged > 0).map(keyOf));
  return state.modes.filter((row) => known.has(keyOf(row)));
}

/** Whether nothing diverged in a mode whose first answers may have been co-batched themselves. */
const isEven = (row, state) => !row.diverged && row.matched > 0 && !state.deterministic_modes.includes(row.mode);

/**
 * The rows of a scope: one for each mode of which anything was compared, of whatever origin, so that no row moves when
 * the scope changes. A mode that is new to a page which is being read comes last, so that none moves then either.
 */
export function rowsOf(state, scope) {
  const rows = new Map();
  for (const mode of measured(state)) {
    if (mode.origin === scope) rows.set(keyOf(mode), mode);
    else if (!rows.has(keyOf(mode))) rows.set(keyOf(mode), nothing(mode, scope));
  }
  const order = (row) => state.known_modes.indexOf(row.mode) + 1 || state.known_modes.length + 1;
  const sorted = [...rows.values()].sort((a, b) => order(a) - order(b) || a.model.localeCompare(b.model));
  for (const row of sorted) if (!places.has(keyOf(row))) places.set(keyOf(row), places.size);
  return sorted.sort((a, b) => places.get(keyOf(a)) - places.get(keyOf(b)));
}

function nothing({ model, mode }, origin) {
  return {
    model, mode, origin, matched: 0, diverged: 0, incomparable: 0, upper_bound: 1, sentence: "",
    causes: {}, margins: {}, pairs: 0, pairs_equal: 0,
  };
}

export function drawRates(state, scope, recent) {
  const rows = rowsOf(state, scope);
  const table = byId("rates");
  show(table, rows.length > 0);
  setText(byId("rates-window"), `Last ${recent.minutes} min`);
  keyed(table.tBodies[0], rows, keyOf, createRow, (node, row) => {
    updateRow(node, row, state, recent.of(Recent.key({ ...row, origin: scope })));
  });
  const empty = byId("rates-empty");
  show(empty, rows.length === 0);
  setText(
    empty,
    "Nothing has been repeated yet, so nothing could be compared. Send a request twice, or let the gateway ask: "
      + "REPRISE_CANARY_INTERVAL=30 sends a canary every 30 s, REPRISE_SHADOW_RATE=0.01 repeats one request in a hundred.",
  );
  drawNotes(state, rows, scope);
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
  setText(diverged.children[1], compared ? `of ${count(compared)}${isEven(row, state) ? " *" : ""}` : "");
  drawBound(rate.children[0], row, compared);
  setText(rate.children[1], compared ? row.sentence.replace(/^[^,]*, /, "") : "nothing compared yet");
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

/** Notes under the table. What has no origin says that it is of all. */
function drawNotes(state, rows, scope) {
  const skipped = Object.entries(state.skipped).sort((a, b) => b[1] - a[1]);
  const reasons = skipped.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(", ");
  const crossed = Object.entries(state.crossed)
    .map(([kind, { match = 0, diverged = 0 }]) => [kind, diverged, match + diverged])
    .filter(([, , all]) => all > 0)
    .map(([kind, diverged, all]) => `${count(diverged)} of ${count(all)} ${kind === "posture" ? "on another posture" : "in another mode"}`);
  const even = rows.filter((row) => isEven(row, state));
  const notes = [
    // Always there, and first: what comes and goes must not move the others.
    ["even", even.length ? `* ${[...new Set(even.map((row) => row.mode))].join(", ")}: the first answer of a cohort is what the others are compared with, and may itself have been co-batched.${firsts(even[0].mode)}` : rows.length ? " " : null],
    ["unmeasured", unmeasured(state)],
    ["crossed", crossed.length ? ["The same request was answered otherwise ", h("b", {}, crossed.join(", ")), " (all origins)."] : null],
    ["canaries", scope === "all" || scope === "canary" ? canaries(state) : null],
    ["skipped", skipped.length ? `Compared to nothing: ${reasons} (all origins).` : null],
  ].filter(([, said]) => said);
  keyed(
    byId("notes"), notes, ([name]) => name,
    ([name]) => h("li", { id: name }),
    (node, [, said]) => {
      const parts = [said].flat();
      node.dataset.empty = said === " ";
      if (node.textContent !== parts.map((part) => part.textContent ?? part).join("")) node.replaceChildren(...parts);
    },
  );
}

function unmeasured(state) {
  const used = new Set(measured(state).map((mode) => mode.mode));
  const never = state.known_modes.filter((mode) => !used.has(mode));
  return never.length && used.size ? `Nothing to compare yet in ${never.join(", ")}.` : null;
}

function canaries({ canaries: told }) {
  if (!told) return null;
  const { sent, round, interval, first_comparison: first } = told;
  const place = sent <= round ? `${count(sent)} of ${count(round)} of the first round` : `${count(sent)}, ${count(sent % round)} of ${count(round)} in round ${count(Math.floor(sent / round) + 1)}`;
  const due = first === null ? "" : ` The first of them comes again, and can be compared, about ${moment(first)}; sooner where the ledger knows it from an earlier process.`;
  return `Canaries sent: ${place}, one every ${seconds(interval)}.${due}`;
}

const peaks = new Map();

/** Asks with how many others the references of a mode ran whose answers all agree; `rows` are those of the table. */
export async function askFirsts(state, scope) {
  const even = rowsOf(state, scope).find((row) => isEven(row, state));
  if (!even) return;
  const { cohorts } = await ask(["cohorts"], { limit: 100, mode: even.mode, origin: scope === "all" ? null : scope });
  const known = cohorts.map((cohort) => cohort.reference_peak).filter((peak) => peak !== null);
  peaks.set(even.mode, { known: known.length, batched: known.filter((peak) => peak > 1).length, most: Math.max(1, ...known) });
}

function firsts(mode) {
  const found = peaks.get(mode);
  if (!found?.known) return "";
  if (!found.batched) return ` Of the ${plural(found.known, "cohort")} seen last, every first answer ran alone.`;
  return ` Of the ${plural(found.known, "cohort")} seen last, ${plural(found.batched, "first answer")} ran with others, ${count(found.most - 1)} at most.`;
}
