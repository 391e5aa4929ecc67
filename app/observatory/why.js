// Causes, margins and fork positions of what diverged.

import { byId, h, keyed, s, setText } from "./dom.js";
import { CAUSE_MEANINGS, CAUSES, count, MARGIN_MEANINGS, MARGINS, named, plural } from "./format.js";

const WIDTH = 480;
const HEIGHT = 104;
const GROUND = 84;

export function drawWhy(state, scope) {
  const rows = state.modes.filter((mode) => mode.origin === scope);
  drawBars(byId("causes"), CAUSES, CAUSE_MEANINGS, added(rows.map((row) => row.causes)));
  drawBars(byId("margins"), MARGINS, MARGIN_MEANINGS, added(rows.map((row) => row.margins)));
  const { tie, near } = state.margins;
  setText(
    byId("limits"),
    `Tie: the two likeliest tokens lay within ${tie} nats, which rounding alone can flip. Near: within ${near}. `
      + "Clear: beyond; suspect weights, template or seed. Counted where the likeliest token is taken; else not known.",
  );
  drawPositions(byId("positions"), state);
}

function added(counts) {
  const total = {};
  for (const each of counts) for (const [label, number] of Object.entries(each)) total[label] = (total[label] ?? 0) + number;
  return total;
}

function drawBars(list, names, meanings, counts) {
  const labels = [...new Set([...Object.keys(names), ...Object.keys(counts)])];
  const all = Object.values(counts).reduce((sum, number) => sum + number, 0);
  keyed(
    list, labels, (label) => label,
    (label) => h(
      "div", { title: meanings[label] ?? "", "data-label": label },
      h("dt", {}, named(names, label)),
      h("dd", {}, s("svg", { height: 6, width: "100%", "aria-hidden": "true" }, s("rect", { height: 6, rx: 1 })), h("span")),
    ),
    (node, label) => {
      const number = counts[label] ?? 0;
      node.querySelector("rect").setAttribute("width", percentOf(number, all));
      setText(node.querySelector("span"), number ? `${count(number)} · ${Math.round((100 * number) / all)} %` : "0");
    },
  );
}

const percentOf = (number, all) => (number ? `${Math.max(1.5, (100 * number) / all)}%` : "0");

/** Columns by fork position; deterministic modes, whose forks are alarms, stand out. All origins: it is one histogram. */
function drawPositions(box, state) {
  const sums = [];
  for (const [mode, histogram] of Object.entries(state.fork_tokens)) {
    const alarm = state.deterministic_modes.includes(mode);
    histogram.buckets.forEach(([edge, number], index) => {
      sums[index] ??= { edge, alarm: 0, other: 0 };
      sums[index][alarm ? "alarm" : "other"] += number;
    });
  }
  const all = sums.reduce((sum, bucket) => sum + bucket.alarm + bucket.other, 0);
  setText(byId("positions-note"), all ? `Where they fork: after so many tokens at most; ${plural(all, "fork")} known to the token, of all origins.` : "");
  const key = JSON.stringify(sums);
  if (box.dataset.drawn === key) return;
  box.dataset.drawn = key;
  if (!all) {
    box.replaceChildren(h("p", { class: "empty" }, "No fork with a known token position yet, of any origin."));
    return;
  }
  const most = Math.max(...sums.map((bucket) => bucket.alarm + bucket.other));
  const step = WIDTH / sums.length;
  const bars = sums.flatMap((bucket, index) => {
    const x = index * step + 1.5;
    const height = (number) => (number ? Math.max(2, (number / most) * (GROUND - 16)) : 0);
    const [other, alarm] = [height(bucket.other), height(bucket.alarm)];
    const number = bucket.alarm + bucket.other;
    return [
      s("rect", { class: "other", x, y: GROUND - other, width: step - 3, height: other }),
      s("rect", { class: "alarm", x, y: GROUND - other - alarm, width: step - 3, height: alarm }),
      number ? s("text", { class: "value", x: x + step / 2 - 1.5, y: GROUND - other - alarm - 3 }, count(number)) : null,
      s("text", { x: x + step / 2 - 1.5, y: GROUND + 14 }, range(sums, index)),
    ];
  });
  const words = sums.map((bucket, index) => [range(sums, index), bucket.alarm + bucket.other]).filter(([, number]) => number);
  const label = `Forks by shared tokens: ${words.map(([at, number]) => `${at}: ${number}`).join(", ")}.`;
  box.replaceChildren(
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, s("path", { class: "ground", d: `M0 ${GROUND + 0.5}H${WIDTH}` }), ...bars),
  );
}

/** A bucket's name: it holds the numbers above the edge before it, up to its own. */
function range(sums, index) {
  const short = (value) => (value >= 1024 ? `${value / 1024}k` : `${value}`);
  const { edge } = sums[index];
  return edge === null ? "more" : short(edge);
}
