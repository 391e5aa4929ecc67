// What was compared in the last minutes, by the gateway's own memory: the same for every page, whenever it was opened.

import { s } from "./dom.js";

const BUCKETS = 60;
const WIDTH = 100;
const HEIGHT = 22;

/** The figures of `state.recent` by `origin|model|mode`. Times are the gateway's, in seconds since 1970. */
export class Recent {
  constructor({ since, until, modes }) {
    Object.assign(this, { since, until });
    this.known = new Map(modes.map((mode) => [Recent.key(mode), mode]));
  }

  static key(mode) {
    return `${mode.origin}|${mode.model}|${mode.mode}`;
  }

  /** How far back this goes, in whole minutes, 1 at least. */
  get minutes() {
    return Math.max(1, Math.round((this.until - this.since) / 60));
  }

  /** What happened meanwhile: sums, and counts by bucket. */
  of(key) {
    const { compared = 0, diverged = 0, steps = [] } = this.known.get(key) ?? {};
    const buckets = Array.from({ length: BUCKETS }, () => ({ compared: 0, diverged: 0 }));
    // A young process has little to show: its bars begin at the right, as those of an old one do.
    const span = Math.max(this.until - this.since, 900);
    for (const [at, more, parted] of steps) {
      const place = Math.min(BUCKETS - 1, Math.max(0, Math.ceil(((at - this.until + span) / span) * BUCKETS) - 1));
      buckets[place].compared += more;
      buckets[place].diverged += parted;
    }
    return { compared, diverged, buckets };
  }
}

/** Small bars: how much was compared, and in another colour how much of it diverged. The words beside it say the sums. */
export function sparkline() {
  return s("svg", { class: "spark", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
}

export function drawSparkline(svg, buckets) {
  const most = Math.max(1, ...buckets.map((bucket) => bucket.compared));
  const step = WIDTH / BUCKETS;
  const bars = (value, name) =>
    s("path", {
      class: name,
      d: buckets
        .map((bucket, index) => [index * step, value(bucket)])
        .filter(([, amount]) => amount > 0)
        .map(([x, amount]) => `M${x.toFixed(2)} ${HEIGHT}h${(step - 0.4).toFixed(2)}v-${Math.max(2, (HEIGHT - 1) * Math.sqrt(amount / most)).toFixed(1)}h-${(step - 0.4).toFixed(2)}z`)
        .join(""),
    });
  svg.replaceChildren(
    s("path", { class: "ground", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }),
    bars((bucket) => bucket.compared, "compared"),
    bars((bucket) => bucket.diverged, "diverged"),
  );
}
