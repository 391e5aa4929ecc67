// One replica's last minutes: exact exclusive phases where its guard tells them, shares of time and load from the probes.

import { s } from "./dom.js";
import { percent, plural, seconds } from "./format.js";

const HEIGHT = 148;
const GUTTER = 62;
const PHASES = [4, 16];
const SHARE = [30, 40];
const LOAD = [84, 40];
const AXIS = 140;
const TICKS = new Map([[60, 15], [600, 120], [3600, 600]]);

/**
 * Draws for the replica `name` its `samples` (of the gateway's probes) and `phases` (of the guard's log, null where it cannot be asked) between two
 * moments in seconds since 1970. Returns what there is to see, in words.
 */
export function drawTimeline(svg, name, samples, phases, from, to) {
  const width = Math.max(240, svg.clientWidth || 600);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const x = (at) => GUTTER + ((Math.min(to, Math.max(from, at)) - from) / (to - from)) * (width - GUTTER);
  const shares = sharesOf(samples).filter((share) => share.to > from);
  const seen = samples.filter((sample) => sample.at >= from);
  const shown = phases?.filter((phase) => (phase.ended ?? to) >= from) ?? null;
  const most = Math.max(1, ...seen.map((sample) => Math.max(sample.shared, sample.waiting_shared, sample.waiting_exclusive)));
  const words = describe(shares, shown, seen);
  const title = `Replica ${name}, the last ${seconds(to - from)}: ${words}`;
  svg.setAttribute("aria-label", title);
  svg.replaceChildren(
    s("title", {}, title),
    ...ground(width, most),
    ...axis(x, from, to, width),
    ...phaseBars(x, shown, to),
    area("drain", shares, x, (share) => share.exclusive + share.drain),
    area("exclusive", shares, x, (share) => share.exclusive),
    steps("shared", seen, x, (sample) => sample.shared / most),
    steps("waiting-shared", seen, x, (sample) => sample.waiting_shared / most),
    steps("waiting-exclusive", seen, x, (sample) => sample.waiting_exclusive / most),
  );
  return words;
}

/** Between each two samples, the shares of time that the gate was in an exclusive phase and draining for one. */
export function sharesOf(samples) {
  const found = [];
  for (let index = 1; index < samples.length; index += 1) {
    const [before, after] = [samples[index - 1], samples[index]];
    const passed = after.at - before.at;
    const share = (name) => Math.min(1, Math.max(0, (after[name] - before[name]) / passed));
    if (passed <= 0 || after.exclusive_seconds < before.exclusive_seconds) continue; // its engine began anew
    const exclusive = share("exclusive_seconds");
    found.push({ from: before.at, to: after.at, exclusive, drain: Math.min(1 - exclusive, share("drain_seconds")) });
  }
  return found;
}

function ground(width, most) {
  const label = (y, text, name = "") => s("text", { class: `lane ${name}`, x: 0, y }, text);
  const line = (y) => s("path", { class: "ground", d: `M${GUTTER} ${y + 0.5}H${width}` });
  return [
    label(PHASES[0] + 12, "phases"),
    label(SHARE[0] + 10, "share"), label(SHARE[0] + 24, "of time", "faint"),
    label(LOAD[0] + 10, "requests"), label(LOAD[0] + 24, `max ${most}`, "faint"),
    line(PHASES[0] + PHASES[1]), line(SHARE[0] + SHARE[1]), line(LOAD[0] + LOAD[1]),
  ];
}

function axis(x, from, to, width) {
  const step = TICKS.get(Math.round(to - from)) ?? 60;
  const ticks = [];
  for (let back = 0; back <= to - from - step / 3; back += step) {
    const place = x(to - back);
    const text = back === 0 ? "now" : back % 60 ? `−${back} s` : `−${back / 60} min`;
    ticks.push(s("path", { class: "tick", d: `M${Math.min(width - 0.5, place).toFixed(1)} ${PHASES[0]}V${AXIS - 10}` }));
    ticks.push(s("text", { class: `axis ${back ? "" : "end"}`, x: place.toFixed(1), y: AXIS + 2 }, text));
  }
  return ticks;
}

function phaseBars(x, phases, to) {
  const [top, height] = PHASES;
  if (phases === null) return [s("text", { class: "lane faint", x: GUTTER + 6, y: top + 12 }, "known with the guard only")];
  return phases.flatMap((phase) => {
    const [asked, granted, ended] = [x(phase.asked), x(phase.granted), x(phase.ended ?? to)];
    return [
      s("rect", { class: "asked", x: asked.toFixed(1), y: top + height / 2 - 1, width: Math.max(0, granted - asked).toFixed(1), height: 2 }),
      s("rect", { class: "exclusive", x: granted.toFixed(1), y: top, width: Math.max(1, ended - granted).toFixed(1), height }),
    ];
  });
}

function area(name, shares, x, value) {
  const [top, height] = SHARE;
  const bottom = top + height;
  const d = shares
    .filter((share) => value(share) > 0)
    .map((share) => `M${x(share.from).toFixed(1)} ${bottom}V${(bottom - value(share) * height).toFixed(1)}H${x(share.to).toFixed(1)}V${bottom}z`);
  return s("path", { class: name, d: d.join("") });
}

function steps(name, samples, x, value) {
  const [top, height] = LOAD;
  const bottom = top + height;
  if (samples.length < 2) return s("path", { class: name });
  const y = (sample) => (bottom - value(sample) * height).toFixed(1);
  let d = "";
  let up = false;
  samples.slice(0, -1).forEach((sample, index) => {
    // A line of zeros along the ground would say nothing, so what is zero is not drawn.
    if (value(sample) > 0) d += `${up ? "" : `M${x(sample.at).toFixed(1)} ${bottom}`}V${y(sample)}H${x(samples[index + 1].at).toFixed(1)}`;
    else if (up) d += `V${bottom}`;
    up = value(sample) > 0;
  });
  return s("path", { class: name, d: up ? `${d}V${bottom}` : d });
}

function describe(shares, phases, samples) {
  if (!samples.length) return "No probe has seen this replica's gate within the time shown.";
  const time = shares.reduce((sum, share) => sum + share.to - share.from, 0);
  const part = (name) => shares.reduce((sum, share) => sum + share[name] * (share.to - share.from), 0) / (time || 1);
  const words = [`exclusive ${percent(part("exclusive"))}`, `drain ${percent(part("drain"))} of the time`];
  if (phases?.length) {
    const longest = Math.max(...phases.map((phase) => phase.granted - phase.asked));
    words.push(`${plural(phases.length, "exclusive phase")}, longest wait ${seconds(longest)}`);
  }
  return words.join(", ");
}
