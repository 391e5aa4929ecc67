// The fork viewer: one cohort, its outputs, where they part, and what differed around them.

import { ask } from "./api.js";
import { byId, h, s } from "./dom.js";
import { brief, byDigests, CAUSE_MEANINGS, CAUSES, closeness, count, MARGIN_MEANINGS, marginMissing, MARGINS, moment, named, nats, percent, plural } from "./format.js";
import { receiptCell } from "./receipt.js";
import { drawTexts } from "./texts.js";

const RULER = 132;
const BLOCK = 64; // tokens of a block digest

export class Viewer {
  constructor() {
    this.box = byId("detail");
    this.id = null;
    this.other = null;
    this.state = null;
    this.rest();
  }

  /** Nothing is open. */
  rest() {
    this.id = null;
    this.box.removeAttribute("aria-busy");
    this.box.replaceChildren(h("p", { class: "empty" }, "Choose a cohort to see where its answers part."));
  }

  /** Shows a cohort, and of its outputs the one of digest `other` beside the reference. */
  async open(id, other, state) {
    const same = this.id && JSON.stringify(this.id) === JSON.stringify(id);
    Object.assign(this, { id, other, state });
    if (same && this.cohort) {
      if (this.lacksText()) await this.update();
      else this.draw();
      return;
    }
    this.cohort = null;
    this.box.setAttribute("aria-busy", "true");
    this.frame();
    await this.update();
    this.box.querySelector("h2").focus();
  }

  /** Whether a text of the chosen output is kept that did not come along: of many long ones only some do. */
  lacksText() {
    return this.cohort.outputs.some((output) => output.digest === this.other && output.text_left_out);
  }

  /** Asks anew. What did not change is left as it is on the page. */
  async update() {
    const { id, other } = this;
    if (!id) return;
    try {
      const cohort = await ask(["cohorts", id.key, id.mode, id.posture], { with: other });
      if (this.id !== id) return;
      this.cohort = cohort;
    } catch (failure) {
      if (this.id !== id) return;
      this.part("refusal", h("p", { class: "warning", role: "alert" }, failure.message));
      this.box.removeAttribute("aria-busy");
      return;
    }
    this.box.removeAttribute("aria-busy");
    this.part("refusal");
    // Another output may have been chosen meanwhile.
    if (this.other !== other && this.lacksText()) await this.update();
    else this.draw();
  }

  frame() {
    const back = h("p", { class: "back" }, h("a", { href: "#/forks" }, "← All cohorts"));
    const title = h("h2", { tabindex: -1 }, h("b", {}, this.id.mode), " ", h("code", { title: this.id.key }, brief(this.id.key, 16)));
    this.parts = Object.fromEntries(["refusal", "summary", "sentence", "outputs", "texts", "circumstances"].map((name) => [name, h("div", { class: `part ${name}` })]));
    this.drawn = {};
    this.box.replaceChildren(back, title, ...Object.values(this.parts));
  }

  part(name, ...children) {
    this.drawn[name] = null;
    this.parts[name].replaceChildren(...children);
  }

  /** Draws one part, unless what it is made of is what it was made of before. */
  redraw(name, facts, make) {
    const key = JSON.stringify(facts);
    if (this.drawn[name] === key) return;
    const focused = this.parts[name].contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    this.part(name, ...make());
    this.drawn[name] = key;
    if (focused) this.parts[name].querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  draw() {
    const { cohort, state } = this;
    const outputs = labelled(cohort);
    const reference = outputs.find((output) => output.digest === cohort.reference) ?? null;
    const rivals = outputs.filter((output) => output !== reference);
    const other = rivals.find((output) => output.digest === this.other) ?? rivals[0] ?? null;
    const known = rivals.reduce((sum, output) => sum + output.seen, reference?.seen ?? 0);
    const { started } = state;
    this.redraw("summary", [cohort.observed, cohort.matched, cohort.diverged, cohort.last_seen, started], () => summary(cohort, outputs, known, started));
    const still = (output) => output && { ...output, seen: 0 };
    this.redraw("sentence", [still(reference), still(other)], () => sentence(reference, other, cohort, state));
    this.redraw("outputs", [outputs, other?.digest], () => [this.table(outputs, reference, other)]);
    this.redraw("texts", [still(reference), still(other)], () => drawTexts(reference, other, state));
    this.redraw("circumstances", [still(reference), still(other)], () => circumstances(reference, other, cohort, state));
  }

  table(outputs, reference, other) {
    const longest = Math.max(1, ...outputs.map((output) => output.tokens ?? 0));
    const titles = ["", "Seen", "Length and fork", "Margin", "First suspect", "Digest"];
    const name = (title) => title || h("span", { class: "hidden" }, "Output");
    const head = h("tr", { role: "row" }, titles.map((title) => h("th", { scope: "col", role: "columnheader" }, name(title))));
    const rows = outputs.map((output) => {
      const close = output === reference ? null : closeness(output.margin, this.state.margins);
      return h(
        "tr", { role: "row", "data-current": output === other || output === reference },
        h("th", { scope: "row", role: "rowheader" }, this.picker(output, reference, other)),
        h("td", { role: "cell", "data-name": "Seen", class: "number" }, `${count(output.seen)}×`),
        h("td", { role: "cell", "data-name": "Length and fork" }, ruler(output, longest, close), h("small", {}, place(output, output === reference))),
        h("td", { role: "cell", "data-name": "Margin" }, close ? h("span", { class: "margin", "data-label": close, title: close === "unknown" ? marginMissing(output, this.state, this.sure()) : MARGIN_MEANINGS[close] }, close === "unknown" ? (byDigests(output) ? "not known: digests only" : "not known") : `${MARGINS[close]}, ${nats(output.margin)}`) : "–"),
        h("td", { role: "cell", "data-name": "First suspect" }, output.cause ? named(CAUSES, output.cause) : "–"),
        h("td", { role: "cell", "data-name": "Digest" }, h("code", { title: output.digest }, brief(output.digest, 9))),
      );
    });
    const caption = h("caption", {}, "Distinct outputs, the first seen first");
    return h("table", { class: "outputs", role: "table" }, caption, h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, rows));
  }

  /** Whether the cohort's mode is deterministic. */
  sure() {
    return isSure(this.cohort, this.state);
  }

  picker(output, reference, other) {
    if (output === reference) return h("span", { class: "letter", "data-side": "left" }, output.letter, h("span", { class: "hidden" }, ", the reference"));
    const address = `${location.hash.split("?")[0]}?with=${encodeURIComponent(output.digest)}`;
    const attributes = { class: "letter", href: address, "data-focus": output.digest, "data-side": output === other ? "right" : null, "aria-current": output === other ? "true" : null, "aria-label": `${output.letter}, compare with the reference` };
    return h("a", attributes, output.letter);
  }
}

function labelled(cohort) {
  const first = cohort.outputs.filter((output) => output.digest === cohort.reference);
  const rest = cohort.outputs.filter((output) => output.digest !== cohort.reference);
  // A reference of which no specimen is kept has its letter nevertheless.
  const from = first.length ? 0 : 1;
  return [...first, ...rest].map((output, index) => ({ ...output, letter: letter(index + from) }));
}

const isSure = (cohort, state) => state.deterministic_modes.includes(cohort.id.mode.split("+")[0]);

const letter = (index) => (index < 26 ? String.fromCharCode(65 + index) : `${index + 1}`);

function summary(cohort, outputs, known, started) {
  const compared = cohort.matched + cohort.diverged;
  const rest = cohort.observed - known;
  const facts = [
    ["model", cohort.model], ["posture", cohort.id.posture],
    ["diverged", compared ? `${count(cohort.diverged)} of ${count(compared)}` : "nothing to compare yet"],
    ["outputs", `${count(outputs.length)} distinct${rest > 0 ? `, ${count(rest)} answers with others` : ""}`],
    ["seen", `${moment(cohort.first_seen)} to ${moment(cohort.last_seen)}`],
    ...(cohort.first_seen < started ? [["counted", cohort.last_seen < started ? "before this process" : "in part before this process"]] : []),
  ];
  return [h("dl", { class: "plain" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))];
}

function sentence(reference, other, cohort, state) {
  if (!other) return [h("p", { class: "lead" }, alike(reference, cohort, state))];
  const where = other.fork_tokens === null
    ? other.fork_characters === null ? "at a place that is not known" : `after ${plural(other.fork_characters, "shared character")}, at a token that is not known`
    : other.fork_characters === null
      ? `in the ${BLOCK} tokens from token ${other.fork_tokens} on (the reference is known by its digests only)`
      : `after ${plural(other.fork_tokens, "shared token")}`;
  const close = closeness(other.margin, state.margins);
  const distance = close === "unknown" ? marginMissing(other, state, isSure(cohort, state)) : `the two likeliest tokens were ${nats(other.margin)} apart there, ${MARGIN_MEANINGS[close]}`;
  const cause = other.cause ? `First suspect: ${named(CAUSES, other.cause)}; ${CAUSE_MEANINGS[other.cause] ?? "see below"}.` : "";
  const from = reference?.letter ?? "the reference";
  return [h("p", { class: "lead", "data-label": close }, h("b", {}, `${other.letter} parts from ${from} ${where}`), `; ${distance}. ${cause}`)];
}

/** What equal answers say: the first of them is only the first. */
function alike(reference, cohort, state) {
  if (cohort.observed < 2) return "One answer so far: there is nothing to compare it with yet.";
  const peak = reference?.coresident_peak ?? null;
  if (isSure(cohort, state)) return "All answers of this cohort are equal.";
  const company = peak === null ? "and may itself have been co-batched" : peak === 1 ? "and ran alone" : `and ran itself with ${plural(peak - 1, "other")} at most`;
  return `All answers of this cohort are equal. The first is what the others are compared with, ${company}.`;
}

function place(output, isReference) {
  const length = output.tokens === null ? "length not known" : plural(output.tokens, "token");
  if (isReference) return `${length}, the reference`;
  if (output.fork_tokens === null) return output.fork_characters === null ? length : `${length}, fork at character ${count(output.fork_characters)}`;
  return `${length}, fork ${output.fork_characters === null ? "from" : "at"} ${count(output.fork_tokens)}`;
}

/**
 * An output's length; what it shares with the reference pale, the rest in the colour of its margin. Where only the block
 * of the fork is known, that block is thin, and where no token is known all of it: somewhere in it they part.
 */
function ruler(output, longest, close) {
  const x = (tokens) => (Math.min(tokens, longest) / longest) * RULER;
  const end = x(output.tokens ?? 0);
  const fork = close ? x(output.fork_tokens ?? 0) : end;
  const block = close && (output.fork_tokens === null || output.fork_characters === null);
  const from = !block ? fork : output.fork_tokens === null ? end : Math.min(end, x(output.fork_tokens + BLOCK));
  return s(
    "svg", { class: "ruler", width: RULER, height: 10, viewBox: `0 0 ${RULER} 10`, "aria-hidden": "true" },
    s("path", { class: "ground", d: `M0 5.5H${RULER}` }),
    output.tokens === null ? null : s("rect", { class: "same", x: 0, y: 3, width: fork, height: 5 }),
    output.tokens === null || !block ? null : s("rect", { class: "somewhere", "data-label": close, x: fork, y: 4, width: Math.max(2, from - fork), height: 3 }),
    output.tokens === null || !close || (block && from >= end) ? null : s("rect", { class: "apart", "data-label": close, x: from, y: 1, width: Math.max(2, end - from), height: 9 }),
  );
}

function circumstances(reference, other, cohort, state) {
  const sides = [reference, other].filter(Boolean);
  if (!sides.length) return [];
  const facts = [
    ["batch", (side) => (side.coresident_peak === null ? "not known" : side.coresident_peak === 1 ? "alone" : `with ${plural(side.coresident_peak - 1, "other")} at most`)],
    ["prefix cache", (side) => (side.cached_tokens === null ? "not known" : side.cached_tokens === 0 ? "cold" : `warm: ${plural(side.cached_tokens, "prompt token")}`)],
    ["replica", (side) => side.replica],
    ["posture", () => h("span", { class: "whole", title: cohort.id.posture }, brief(cohort.id.posture, 14))],
    ["origin", (side) => side.origin],
    ["edit similarity", (side) => (side === reference ? "1, by definition" : side.similarity === null ? "not known" : percent(side.similarity))],
    ["first seen", (side) => (side.at < state.started ? `${moment(side.at)}, before this process` : moment(side.at))],
  ];
  const telling = new Set(["batch", "prefix cache", "replica"]);
  const head = h("tr", {}, h("th", { scope: "col" }, "Circumstance"), sides.map((side) => h("th", { scope: "col" }, side.letter)));
  const rows = facts.map(([name, tell]) => {
    const told = sides.map(tell);
    const differs = telling.has(name) && new Set(told).size > 1;
    return h("tr", { "data-differs": differs }, h("th", { scope: "row" }, name, differs ? h("span", { class: "differs" }, " differs") : null), told.map((text) => h("td", {}, text)));
  });
  const links = sides.map((side) => h("td", {}, receiptCell(side.request_id, side.receipt, side.at, state)));
  rows.push(h("tr", {}, h("th", { scope: "row" }, "receipt"), links));
  return [h("table", { class: "circumstances" }, h("caption", {}, "Circumstances when first seen"), h("thead", {}, head), h("tbody", {}, rows))];
}

