// Lists of cohorts: the forks seen last on the overview, and the list beside the viewer with its filter and its keys.

import { ask } from "./api.js";
import { byId, h, keyed, setText, show } from "./dom.js";
import { ago, brief, count, plural } from "./format.js";

const STEP = 50;
const MOST = 500;
const LATEST = 6;
const RUNS = 200;

/** A cohort as part of the address. */
export function addressOf({ key, mode, posture }) {
  return `#/forks/${[key, mode, posture].map(encodeURIComponent).join("/")}`;
}

export class Cohorts {
  /** `failed` is told what went wrong. */
  constructor(failed) {
    this.failed = failed;
    this.limit = STEP;
    this.form = byId("filters");
    this.list = byId("cohorts");
    this.found = null;
    this.open = null;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.limit = STEP;
      this.update();
    });
    byId("older").addEventListener("click", () => {
      this.limit = Math.min(MOST, this.limit + STEP);
      this.update();
    });
    for (const list of [this.list, byId("latest")]) list.addEventListener("keydown", (event) => walk(list, event));
  }

  /** What the address asks for; null leaves the filter as it is. */
  filter(mode) {
    if (mode === null) return;
    this.offer([mode]);
    this.form.elements.mode.value = mode;
  }

  offer(modes) {
    const select = this.form.elements.mode;
    const known = new Set([...select.options].map((option) => option.value));
    for (const mode of modes) if (!known.has(mode)) select.append(h("option", { value: mode }, mode));
  }

  async update() {
    const asked = { limit: this.limit, mode: this.form.elements.mode.value, diverged: this.form.elements.diverged.checked };
    this.asked = asked;
    try {
      const { cohorts } = await ask(["cohorts"], asked);
      if (this.asked !== asked) return; // the filter has changed meanwhile
      this.found = cohorts;
      this.offer(cohorts.map((cohort) => cohort.id.mode));
      this.failed(null);
    } catch (failure) {
      this.failed(failure);
      return;
    }
    setText(byId("cohorts-status"), `${plural(this.found.length, "cohort")} listed.`);
    this.draw();
  }

  draw() {
    if (this.found === null) return;
    drawList(this.list, this.found, this.open);
    show(byId("older"), this.found.length === this.limit && this.limit < MOST);
    const empty = byId("cohorts-empty");
    show(empty, this.found.length === 0);
    const diverged = this.form.elements.diverged.checked;
    setText(
      empty,
      diverged
        ? "No cohort here has diverged. Untick “diverged only” to see those whose answers agree."
        : "No cohort yet: send something, or set REPRISE_CANARY_INTERVAL=30 to let the gateway ask.",
    );
  }

  /** Marks the open cohort. */
  opened(id) {
    this.open = id;
    this.draw();
  }

  focus(id) {
    const link = [...this.list.querySelectorAll("a")].find((each) => id && each.getAttribute("href") === addressOf(id));
    (link ?? this.list.querySelector("a") ?? byId("main")).focus();
  }
}

/** The overview's list of what diverged last. Throws Failure. */
export async function drawLatest() {
  const { cohorts } = await ask(["cohorts"], { limit: LATEST, diverged: true });
  drawList(byId("latest"), cohorts, null);
  const empty = byId("latest-empty");
  show(empty, cohorts.length === 0);
  setText(empty, "No kept cohort has diverged.");
}

function drawList(list, cohorts, open) {
  const now = Date.now() / 1000;
  const current = open && addressOf(open);
  keyed(list, cohorts, (cohort) => addressOf(cohort.id), createItem, (node, cohort) => {
    const link = node.firstChild;
    const [, numbers, when] = link.children;
    node.dataset.level = cohort.diverged ? "seen" : "ok";
    if (current === node.dataset.key) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    const compared = cohort.matched + cohort.diverged;
    setText(numbers, `${count(cohort.diverged)} of ${count(compared)} diverged, ${plural(cohort.distinct, "output")}`);
    setText(when, ago(cohort.last_seen, now));
  });
}

function createItem(cohort) {
  const { key, mode } = cohort.id;
  const title = h("span", { class: "title" }, h("b", {}, mode), " ", h("code", {}, brief(key, 12)), " ", h("small", {}, cohort.model));
  const link = h("a", { href: addressOf(cohort.id) }, title, h("span", { class: "numbers" }), h("span", { class: "faint" }));
  return h("li", {}, link);
}

/** Arrow keys, Home and End move between the links of a list; Enter follows one, as everywhere. */
function walk(list, event) {
  const links = [...list.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (at < 0 || to === undefined || !links[to]) return;
  event.preventDefault();
  links[to].focus();
}

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
    (run) => h("tr", {}, h("th", { scope: "row" }, run.label), h("td", { class: "number" })),
    (row, run) => setText(row.cells[1], count(run.answers)),
  );
}
