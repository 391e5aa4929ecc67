// Runs: the labels on the overview, and the view of one run's answers.

import { ask } from "./api.js";
import { addressOf } from "./cohorts.js";
import { byId, h, keyed, setText, show } from "./dom.js";
import { brief, count, moment, plural } from "./format.js";
import { receiptCell } from "./receipt.js";

const RUNS = 200;
const STEP = 200;

/** The labels of the latest runs with their sizes. Throws Failure. */
export async function drawRuns() {
  const { runs } = await ask(["runs"], { limit: RUNS });
  show(byId("runs-latest"), runs.length === RUNS);
  setText(byId("runs-latest"), `These are the ${RUNS} runs that were answered last.`);
  show(byId("runs"), runs.length > 0);
  show(byId("runs-empty"), runs.length === 0);
  setText(byId("runs-empty"), "No run yet: send x-determinism-run: NAME with requests, and compare two runs with reprise compare.");
  keyed(
    byId("runs").tBodies[0], runs, (run) => run.label,
    (run) => h("tr", {}, h("th", { scope: "row" }, h("a", { href: `#/runs/${encodeURIComponent(run.label)}` }, run.label)), h("td", { class: "number" })),
    (row, run) => setText(row.cells[1], count(run.answers)),
  );
}

/** The view of one run. `failed` is told what went wrong. */
export class Run {
  constructor(failed) {
    this.failed = failed;
    this.label = null;
    byId("more-answers").addEventListener("click", () => this.read());
  }

  /** Shows a run from its first answer; null shows none. */
  async open(label, state) {
    if (label === null || label !== this.label) {
      Object.assign(this, { label, answers: [] });
      byId("answers").tBodies[0].replaceChildren();
      show(byId("answers"), false);
      show(byId("more-answers"), false);
      setText(byId("run-about"), "");
    }
    this.state = state;
    if (label === null) return;
    setText(byId("run-title"), `Run ${label}`);
    if (!state || this.answers.length) return;
    if (state.ledger_kind === "memory") {
      setText(byId("run-about"), "The ledger is in memory only, where runs cannot be read: start the gateway with REPRISE_LEDGER=1.");
      return;
    }
    await this.read();
    byId("run-title").focus();
  }

  /** Asks for the next answers: as many as a page holds, or all that are left. */
  async read() {
    const { label, answers } = this;
    const more = [];
    let all = false;
    try {
      // A page of long texts holds fewer than were asked for: only an empty one is the end.
      while (!all && more.length < STEP) {
        const after = (more.at(-1) ?? answers.at(-1))?.number ?? 0;
        const found = (await ask(["runs", label], { after, limit: STEP - more.length })).answers;
        more.push(...found);
        all = found.length === 0;
      }
      this.failed(null);
    } catch (failure) {
      this.failed(failure);
    }
    if (this.label !== label || this.answers !== answers) return;
    this.answers = [...answers, ...more];
    show(byId("answers"), this.answers.length > 0);
    show(byId("more-answers"), !all);
    const known = `${plural(this.answers.length, "answer")}${all ? "" : ", and more"}, in the order in which they ended.`;
    setText(byId("run-about"), this.answers.length || !all ? known : "No answer of such a run is kept.");
    keyed(byId("answers").tBodies[0], this.answers, (answer) => `${answer.number}`, (answer) => this.row(answer), () => {});
  }

  row(answer) {
    return h(
      "tr", {},
      h("td", {}, moment(answer.at)),
      h("td", {}, answer.cohort.mode),
      h("td", {}, h("a", { href: `${addressOf(answer.cohort)}?with=${encodeURIComponent(answer.output)}` }, h("code", { title: answer.cohort.key }, brief(answer.cohort.key, 12)))),
      h("td", {}, h("code", { title: answer.output }, brief(answer.output, 14))),
      h("td", {}, receiptCell(answer.request_id, answer.receipt, answer.at, this.state)),
    );
  }
}
