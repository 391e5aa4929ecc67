// The page's heartbeat: asks every two seconds while it is seen, and shows what the address names.

import { ask } from "./api.js";
import { Cohorts, drawLatest } from "./cohorts.js";
import { byId, choice, h, keyed, setText, show } from "./dom.js";
import { count, moment, plural } from "./format.js";
import { drawHeadline, drawSilence } from "./headline.js";
import { askFirsts, drawRates } from "./rates.js";
import { Recent } from "./recent.js";
import { drawReplicas, Replicas } from "./replicas.js";
import { drawRuns, Run } from "./runs.js";
import { Viewer } from "./viewer.js";
import { drawWhy } from "./why.js";

const EVERY_MS = 2000;
const LEDGER_EVERY = 5;

const replicas = new Replicas();
const viewer = new Viewer();
const problems = new Map();
const scope = choice(byId("scope"), rescope);
const cohorts = new Cohorts((failure) => problem("cohorts", failure), () => scope(), () => state?.started ?? 0);
const run = new Run((failure) => problem("run", failure));
const span = choice(byId("window"), draw);
let state = null;
let recent = null;
let heard = false;
let view = "overview";
let rounds = 0;
let timer = null;
let asking = false;

function problem(about, failure) {
  if (failure) problems.set(about, failure.message);
  else problems.delete(about);
  const box = byId("problem");
  show(box, problems.size > 0);
  setText(box, [...new Set(problems.values())].join(" "));
}

function draw() {
  if (!state) return;
  show(byId("main"), true);
  if (heard) drawHeadline(state, scope(), recent);
  else drawSilence(state);
  if (view !== "overview") return;
  drawRates(state, scope(), recent);
  drawWhy(state, scope());
  drawReplicas(state, replicas, Number(span()));
  drawLedger();
}

/** Whose answers are shown has changed: what is listed is asked for anew. */
function rescope() {
  draw();
  if (state) askLedger();
}

function drawLedger() {
  const { ledger } = state;
  const dropped = Object.entries(ledger.dropped).map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`);
  const kinds = { sqlite: "SQLite, one file", memory: "memory only: REPRISE_LEDGER=1 keeps cohorts", redis: "Redis" };
  const facts = [
    ["kept in", kinds[state.ledger_kind] ?? state.ledger_kind],
    ["state", ledger.problem ?? "answers"],
    ["written", `${plural(ledger.written, "answer")} since the start`],
    ["dropped", dropped.join(", ") || "none"],
    ["texts", state.texts ? "kept" : "not kept: digests only"],
  ];
  keyed(
    byId("ledger"), facts, ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd")),
    (node, [name, value]) => {
      node.dataset.level = (name === "state" && ledger.problem) || (name === "dropped" && dropped.length) ? "attention" : "";
      setText(node.lastChild, value);
    },
  );
}

/** Runs one question; what fails is shown, and the rest of the page goes on. */
async function attempt(about, question) {
  try {
    const answer = await question();
    problem(about, null);
    return answer;
  } catch (failure) {
    problem(about, failure);
    return null;
  }
}

async function round() {
  const found = await attempt("state", () => ask(["state"]));
  heard = found !== null;
  if (!found) {
    byId("live").dataset.level = "bad";
    drawSilence(state);
    setText(byId("live-text"), state ? `last answer ${moment(state.now)}` : "no answer");
    return;
  }
  state = found;
  recent = new Recent(state.recent);
  cohorts.offer(state.known_modes);
  await attempt("timeline", () => replicas.update(state));
  draw();
  byId("live").dataset.level = "ok";
  setText(byId("live-text"), `live, ${moment(state.now)}`);
  if (rounds % LEDGER_EVERY === 0) await askLedger();
  rounds += 1;
}

async function askLedger() {
  if (state.ledger_kind === "memory") {
    const words = "The ledger is in memory only, where cohorts cannot be listed: start the gateway with REPRISE_LEDGER=1.";
    for (const id of ["latest-empty", "runs-empty", "cohorts-empty"]) {
      show(byId(id), true);
      setText(byId(id), words);
    }
    return;
  }
  if (view === "forks") await Promise.all([cohorts.update(), viewer.update()]);
  else if (view === "overview") {
    await Promise.all([
      attempt("latest", () => drawLatest(scope(), state.started)),
      attempt("runs", drawRuns),
      attempt("firsts", () => askFirsts(state, scope())),
    ]);
    drawRates(state, scope(), recent);
  }
}

async function beat() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  try {
    await round();
    problem("page", null);
  } catch (fault) {
    // A fault of the page's own: said, and tried again with the next answer.
    problem("page", new Error(`The page failed: ${fault.message}`));
  } finally {
    asking = false;
    timer = setTimeout(beat, EVERY_MS);
  }
}

/** Shows what the address names: `#/`, `#/forks?mode=M`, `#/forks/KEY/MODE/POSTURE?with=DIGEST`, or `#/runs/LABEL`. */
function route() {
  const hash = location.hash || "#/";
  if (!hash.startsWith("#/")) return;
  const [path, query = ""] = hash.slice(2).split("?");
  const [first, ...id] = path.split("/");
  const asked = new URLSearchParams(query);
  const was = view;
  view = first === "forks" ? "forks" : first === "runs" && id.length ? "run" : "overview";
  show(byId("overview"), view === "overview");
  show(byId("forks"), view === "forks");
  show(byId("run"), view === "run");
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = { forks: "Forks · Reprise observatory", run: "Run · Reprise observatory" }[view] ?? "Reprise observatory";
  run.open(view === "run" ? unescaped(id.join("/")) : null, state);
  if (view === "forks") showForks(id, asked);
  if (!state) return;
  draw();
  if (was !== view) {
    window.scrollTo(0, 0);
    // What the other view could not read is asked for there alone.
    for (const about of ["latest", "runs", "firsts", "cohorts", "run"]) problem(about, null);
    askLedger();
  } else if (asked.has("mode")) cohorts.update();
}

function showForks(parts, asked) {
  cohorts.filter(asked.get("mode"));
  const left = viewer.id;
  byId("forks").dataset.open = parts.length === 3 ? "true" : "false";
  if (parts.length !== 3) {
    viewer.rest();
    cohorts.opened(null);
    if (left) cohorts.focus(left);
    return;
  }
  const [key, mode, posture] = parts.map(unescaped);
  cohorts.opened({ key, mode, posture });
  if (state && state.ledger_kind !== "memory") viewer.open({ key, mode, posture }, asked.get("with"), state);
}

function unescaped(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function start() {
  window.addEventListener("hashchange", route);
  document.addEventListener("visibilitychange", beat);
  window.addEventListener("resize", draw);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  // A heading that takes the focus shows a ring to whom works with keys, and to nobody else.
  document.addEventListener("keydown", () => (document.documentElement.dataset.keys = "true"), true);
  document.addEventListener("pointerdown", () => delete document.documentElement.dataset.keys, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && view === "forks" && viewer.id) location.hash = "#/forks";
  });
  route();
  await beat();
  // An address that names a cohort could not be followed before the gateway's limits were known.
  route();
}

start();
