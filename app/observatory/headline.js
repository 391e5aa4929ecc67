// The sentence on top: is everything fine? It never claims more than what was measured says.

import { byId, h, keyed, setText } from "./dom.js";
import { count, moment, ORIGINS, plural } from "./format.js";
import { Recent } from "./recent.js";

const ENOUGH = 0.05; // the bound from which "nothing diverged" is good news

const total = (rows, name) => rows.reduce((sum, row) => sum + row[name], 0);
const part = (some, all) => (all ? `${count(some)} of ${count(all)} diverged` : "nothing compared");

/** Worst first. `scope` is an origin, or "all"; an alarm is told whatever is chosen. */
export function headline(state, scope, recent) {
  const rows = state.modes.filter((mode) => mode.origin === scope);
  const isAlarm = (row) => row.diverged > 0 && state.deterministic_modes.includes(row.mode);
  const alarms = rows.filter(isAlarm);
  const hidden = state.modes.filter((row) => row.origin === "all" && isAlarm(row) && !alarms.some((each) => each.mode === row.mode && each.model === row.model));
  const sure = state.deterministic[scope];
  const healthy = state.replicas.filter((replica) => replica.healthy).length;
  const dropped = Object.values(state.ledger.dropped).reduce((sum, number) => sum + number, 0);
  const lately = rows.map((row) => recent.of(Recent.key(row)));
  const facts = [
    ["replicas", `${healthy} of ${state.replicas.length} healthy`, healthy < state.replicas.length],
    ["deterministic modes", part(sure.diverged, sure.compared), sure.diverged > 0],
    [`last ${recent.minutes} min`, part(total(lately, "diverged"), total(lately, "compared")), false],
    ["ledger", state.ledger.problem ? "away" : dropped ? `${plural(dropped, "answer")} dropped` : "writes", Boolean(state.ledger.problem || dropped)],
    ["queue", plural(state.ledger.queued, "observation"), false],
  ];
  return { ...verdict(), beside: beside(state, rows, scope), facts };

  function verdict() {
    if (!healthy) return { level: "bad", text: "No replica is healthy: deterministic or not, nothing is served." };
    if (alarms.length) {
      const fresh = total(alarms.map((row) => recent.of(Recent.key(row))), "diverged");
      return { level: "bad", text: `Answers diverged in a deterministic mode (${names(alarms)}): ${bounded(sure.sentence)}; ${fresh ? count(fresh) : "none"} in the last ${recent.minutes} min.` };
    }
    if (hidden.length) {
      return { level: "bad", text: `Answers of another origin diverged in a deterministic mode (${names(hidden)}): ${count(total(hidden, "diverged"))} of ${count(total(hidden, "matched") + total(hidden, "diverged"))}.` };
    }
    if (healthy < state.replicas.length) return { level: "warn", text: `${plural(state.replicas.length - healthy, "replica")} out.` };
    if (state.ledger.problem) return { level: "warn", text: "The ledger is away; verdicts go on from memory." };
    if (dropped) return { level: "warn", text: "Some answers did not reach the ledger." };
    if (sure.compared) {
      const enough = sure.upper_bound <= ENOUGH;
      return {
        level: enough ? "ok" : "idle",
        text: `Deterministic modes: ${bounded(sure.sentence)}${enough ? "." : "; too few to claim more."}`,
      };
    }
    if (rows.length) return { level: "idle", text: "No deterministic mode has been compared yet." };
    return { level: "idle", text: scope === "all" ? "Nothing has been compared yet." : `Nothing of ${ORIGINS[scope]} has been compared yet.` };
  }
}

const names = (rows) => [...new Set(rows.map((row) => row.mode))].join(", ");

/** "0 of 2, below 77.7 % (95 %)" with the word of what is counted. */
const bounded = (sentence) => sentence.replace(/^[^,]*/, "$& diverged");

/** The other modes beside it, whose answers are counted, and since when: the one time base of all counts. */
function beside(state, rows, scope) {
  const others = new Map();
  for (const row of rows.filter((each) => !state.deterministic_modes.includes(each.mode))) {
    const [parted, all] = others.get(row.mode) ?? [0, 0];
    others.set(row.mode, [parted + row.diverged, all + row.diverged + row.matched]);
  }
  const order = ([mode]) => state.known_modes.indexOf(mode);
  const told = [...others].sort((a, b) => order(a) - order(b)).filter(([, [, all]]) => all).map(([mode, [parted, all]]) => `${mode}: ${count(parted)} of ${count(all)} diverged`);
  const whose = scope === "all" ? "of all origins" : `of ${ORIGINS[scope]} alone`;
  return `${told.length ? `${told.join(", ")}. ` : ""}Counts are ${whose}, in this process since its start, ${moment(state.started)}.`;
}

/** What was fine may not be so any more: old figures must not look like news. */
export function drawSilence(state) {
  byId("headline").dataset.level = "warn";
  setText(byId("verdict"), state ? `No answer from the gateway; all figures are those of ${moment(state.now)}.` : "No answer from the gateway yet.");
}

export function drawHeadline(state, scope, recent) {
  const { level, text, beside: more, facts } = headline(state, scope, recent);
  byId("headline").dataset.level = level;
  setText(byId("verdict"), text);
  setText(byId("beside"), more);
  keyed(
    byId("facts"), facts.map((fact, index) => [index, ...fact]), ([index]) => `${index}`,
    () => h("li", {}, h("span"), " ", h("b")),
    (node, [, name, value, attention]) => {
      node.dataset.level = attention ? "attention" : "";
      setText(node.querySelector("span"), name);
      setText(node.querySelector("b"), value);
    },
  );
}
