// The texts of two outputs side by side, where they are kept.

import { forkOf, textsOf, visible, visibleMark } from "./compare.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";

const SHOWN_BEFORE = 320;
const SHOWN_AFTER = 4000;
const NO_CHOICE = { text: "", parts: [] };

/** What is shown of a pair of outputs; either may be null. */
export function drawTexts(reference, other, state) {
  const [left, right] = [textsOf(reference), textsOf(other)];
  if (!other) return left ? left.map((choice) => single(reference, choice)) : [none(state)];
  if (!left && !right) return [none(state)];
  if (!left || !right) {
    const [side, choices] = left ? [reference, left] : [other, right];
    return [h("p", { class: "about" }, `Of ${(left ? other : reference)?.letter ?? "the reference"} no text is kept.`), ...choices.map((choice) => single(side, choice))];
  }
  const many = Math.max(left.length, right.length) > 1;
  return Array.from({ length: Math.max(left.length, right.length) }, (_, index) => {
    const choices = [left[index] ?? NO_CHOICE, right[index] ?? NO_CHOICE];
    return pair([reference, other], choices, many ? `Choice ${index + 1}` : null);
  });
}

function none(state) {
  const hint = state.texts
    ? "The texts of these outputs were not kept: they are older than the setting, or the redaction hook refused them."
    : "Texts are not kept, so digests and positions are all there is to see. REPRISE_KEEP_TEXTS=1 keeps the texts of answers from then on, with what looks like a secret masked.";
  return h("p", { class: "empty" }, hint);
}

function single(output, choice) {
  return h("div", {}, h("div", { class: "texts" }, column(output.letter, "left", null, [h("span", {}, visible(choice.text))])), parts([output], [choice]));
}

function pair(outputs, choices, title) {
  const heading = title ? h("h3", {}, title) : null;
  const [reference, other] = outputs;
  const fork = forkOf(choices[0].text, choices[1].text);
  if (fork.equal) {
    const note = "The kept texts are equal: the outputs part in what is not shown here, a finish reason, a masked secret, or beyond the size that is kept.";
    return h("div", {}, heading, h("p", { class: "about" }, note), h("div", { class: "texts" }, column(`${reference.letter} and ${other.letter}`, "left", null, [h("span", {}, visible(fork.shared.join("")))])), parts([reference], choices));
  }
  const note = `${plural(fork.at, "shared character")}, then the characters`;
  return h(
    "div", {}, heading,
    h(
      "div", { class: "texts" },
      column(reference.letter, "left", `${note} “${visibleMark(fork.left.mark)}”`, body(fork.shared, fork.left)),
      column(other.letter, "right", `${note} “${visibleMark(fork.right.mark)}”`, body(fork.shared, fork.right)),
    ),
    parts(outputs, choices),
    h("p", { class: "about" }, "Marked are the characters from the first that differs; the tokens that part may begin before it, for where tokens begin is not kept."),
  );
}

/** What the texts are made of, where that is more than text; nothing says so in them but a mark between two parts. */
function parts(outputs, choices) {
  if (choices.every((choice) => choice.parts.every((name) => name === "text"))) return null;
  const said = outputs.map((output, index) => `${output.letter} is ${choices[index].parts.join(", ") || "empty"}`);
  return h("p", { class: "about" }, `The parts of an answer follow each other, with a ␞ between them and between a tool's name and its arguments: ${said.join("; ")}.`);
}

function column(letter, side, note, children) {
  const label = `Text of output ${letter}`;
  return h(
    "section", { class: "text", "data-side": side, "aria-label": label },
    h("h3", {}, h("span", { class: "letter", "data-side": side }, letter), note ? h("small", {}, note) : null),
    h("pre", { tabindex: 0, dir: "auto", "aria-label": label }, children),
  );
}

function body(shared, side) {
  const children = [];
  const hidden = shared.length - SHOWN_BEFORE;
  if (hidden > 80) {
    children.push(more(`… ${count(hidden)} characters before`, shared.slice(0, hidden), "same"));
    children.push(h("span", { class: "same" }, visible(shared.slice(hidden).join(""))));
  } else children.push(h("span", { class: "same" }, visible(shared.join(""))));
  children.push(h("mark", {}, visibleMark(side.mark)));
  children.push(h("span", {}, visible(side.rest.slice(0, SHOWN_AFTER).join(""))));
  if (side.rest.length > SHOWN_AFTER) children.push(more(`… ${count(side.rest.length - SHOWN_AFTER)} more characters`, side.rest.slice(SHOWN_AFTER), ""));
  return children;
}

/** A button in place of a long part. */
function more(label, characters, name) {
  const button = h("button", { type: "button", class: "more" }, label);
  button.addEventListener("click", () => button.replaceWith(h("span", { class: name }, visible(characters.join("")))));
  return button;
}
