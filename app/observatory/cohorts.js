// Lists of cohorts: the forks seen last on the overview, and the list beside the viewer with its filter and its keys.

import { ask } from "./api.js";
import { byId, h, keyed, setText, show } from "./dom.js";
import { ago, brief, count, ORIGINS, plural } from "./format.js";

const STEP = 50;
const MOST = 500;
const LATEST = 6;

/** A cohort as part of the address. */
export function addressOf({ key, mode, posture }) {
  return `#/forks/${[key, mode, posture].map(encodeURIComponent).join("/")}`;
}

export class Cohorts {
  /** `failed` is told what went wrong; `scope` gives whose answers are listed, and `started` when the process did. */
  constructor(failed, scope, started) {
    this.failed = failed;
    this.scope = scope;
    this.started = started;
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
    byId("latest").addEventListener("keydown", (event) => walk(byId("latest"), event));
    this.list.addEventListener("focusin", (event) => this.rove(event.target.closest("a")));
    document.addEventListener("keydown", (event) => this.keys(event));
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
    const origin = originOf(this.scope());
    const asked = { limit: this.limit, mode: this.form.elements.mode.value, diverged: this.form.elements.diverged.checked, origin };
    this.asked = asked;
    try {
      const { cohorts, searched } = await ask(["cohorts"], asked);
      if (this.asked !== asked) return; // the filter has changed meanwhile
      this.found = cohorts;
      show(byId("origin-note"), origin !== null);
      setText(byId("origin-note"), origin ? `Those with a distinct answer of ${ORIGINS[origin]}, among the ${plural(searched, "cohort")} seen last.` : "");
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
    drawList(this.list, this.found, this.open, this.started());
    this.rove(this.list.querySelector('a[tabindex="0"]'));
    show(byId("older"), this.found.length === this.limit && this.limit < MOST);
    const empty = byId("cohorts-empty");
    show(empty, this.found.length === 0);
    const diverged = this.form.elements.diverged.checked;
    const origin = originOf(this.scope());
    setText(
      empty,
      origin
        ? `No cohort here has a distinct answer of ${ORIGINS[origin]}.`
        : diverged
        ? "No cohort here has diverged. Untick “diverged only” to see those whose answers agree."
        : "No cohort yet: send something, or set REPRISE_CANARY_INTERVAL=30 to let the gateway ask.",
    );
  }

  /** Marks the open cohort. */
  opened(id) {
    this.open = id;
    this.draw();
    if (id) this.rove(this.linkOf(id));
  }

  linkOf(id) {
    return [...this.list.querySelectorAll("a")].find((each) => each.getAttribute("href") === addressOf(id));
  }

  /** Lets one link alone be reached by Tab, the first where there is no other; arrows reach the rest. */
  rove(link) {
    const links = [...this.list.querySelectorAll("a")];
    const one = links.includes(link) ? link : links[0];
    for (const each of links) each.tabIndex = each === one ? 0 : -1;
  }

  /** Arrows lead into the list from wherever they have no meaning of their own: the page, its links, the check box. */
  keys(event) {
    if (byId("forks").hidden || event.altKey || event.ctrlKey || event.metaKey) return;
    if (this.list.contains(event.target)) walk(this.list, event);
    else if (["ArrowDown", "ArrowUp"].includes(event.key) && !event.target.closest("select, input:not([type=checkbox]), .detail")) {
      const link = this.list.querySelector('a[tabindex="0"]');
      if (!link) return;
      event.preventDefault();
      link.focus();
    }
  }

  focus(id) {
    (this.linkOf(id) ?? this.list.querySelector("a") ?? byId("main")).focus();
  }
}

const originOf = (scope) => (scope === "all" ? null : scope);

/** The overview's list of what diverged last. Throws Failure. */
export async function drawLatest(scope, started) {
  const origin = originOf(scope);
  const { cohorts } = await ask(["cohorts"], { limit: LATEST, diverged: true, origin });
  drawList(byId("latest"), cohorts, null, started);
  const empty = byId("latest-empty");
  show(empty, cohorts.length === 0);
  setText(empty, origin ? `No kept cohort with a distinct answer of ${ORIGINS[origin]} has diverged.` : "No kept cohort has diverged.");
}

/** What of a cohort an earlier process counted, or another gateway that shares the ledger; the counts on top know none of it. */
function age(cohort, started) {
  if (cohort.last_seen < started) return ", before this process";
  return cohort.first_seen < started ? ", in part before this process" : "";
}

function drawList(list, cohorts, open, started) {
  const now = Date.now() / 1000;
  const current = open && addressOf(open);
  keyed(list, cohorts, (cohort) => addressOf(cohort.id), createItem, (node, cohort) => {
    const link = node.firstChild;
    const [, numbers, when] = link.children;
    node.dataset.level = cohort.diverged ? "seen" : "ok";
    if (current === node.dataset.key) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    const compared = cohort.matched + cohort.diverged;
    const said = compared
      ? `${count(cohort.diverged)} of ${count(compared)} diverged, ${plural(cohort.distinct, "output")}`
      : `${plural(cohort.observed, "answer")}, nothing to compare yet`;
    setText(numbers, said + age(cohort, started));
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
