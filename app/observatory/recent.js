// The page's own memory of the counters: what was compared, and what of it diverged, in the last minutes.

import { s } from "./dom.js";

const SPAN = 600;
const BUCKETS = 60;
const WIDTH = 120;
const HEIGHT = 22;

/** Samples of the counters by `origin|model|mode`. Times are the gateway's, in seconds since 1970. */
export class Recent {
  constructor() {
    this.began = null;
    this.now = 0;
    this.last = null;
    this.before = new Map();
    this.steps = new Map();
  }

  static key(mode) {
    return `${mode.origin}|${mode.model}|${mode.mode}`;
  }

  add(now, modes) {
    this.began ??= now;
    for (const mode of modes) {
      const key = Recent.key(mode);
      const total = { compared: mode.matched + mode.diverged, diverged: mode.diverged };
      // A label set that is new to a page which has looked before began at 0.
      const before = this.before.get(key) ?? (this.last === null ? total : { compared: 0, diverged: 0 });
      // A gateway that started anew counts from 0.
      const since = (name) => (total[name] >= before[name] ? total[name] - before[name] : total[name]);
      const step = { from: this.last ?? now, to: now, compared: since("compared"), diverged: since("diverged") };
      const steps = this.steps.get(key) ?? [];
      if (step.compared || step.diverged) steps.push(step);
      while (steps.length && steps[0].to < now - SPAN) steps.shift();
      this.steps.set(key, steps);
      this.before.set(key, total);
    }
    this.last = this.now = now;
  }

  /** Since when this is all that was compared: at most ten minutes ago. */
  get since() {
    return Math.max(this.began ?? this.now, this.now - SPAN);
  }

  /** What happened within the span: sums, and counts by bucket, those of a pause of the page spread over it. */
  of(key) {
    const buckets = Array.from({ length: BUCKETS }, () => ({ compared: 0, diverged: 0 }));
    const sum = { compared: 0, diverged: 0 };
    for (const step of this.steps.get(key) ?? []) {
      sum.compared += step.compared;
      sum.diverged += step.diverged;
      const place = (at) => Math.floor(((at - this.now + SPAN) / SPAN) * BUCKETS);
      const last = Math.min(BUCKETS - 1, Math.max(0, place(step.to)));
      const first = Math.min(last, Math.max(0, place(step.from) + 1));
      for (let bucket = first; bucket <= last; bucket += 1) {
        buckets[bucket].compared += step.compared / (last - first + 1);
        buckets[bucket].diverged += step.diverged / (last - first + 1);
      }
    }
    return { ...sum, buckets };
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
        .map(([x, amount]) => `M${x} ${HEIGHT}h${step - 0.4}v-${Math.max(2, (HEIGHT - 1) * Math.sqrt(amount / most)).toFixed(1)}h-${step - 0.4}z`)
        .join(""),
    });
  svg.replaceChildren(
    s("path", { class: "ground", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }),
    bars((bucket) => bucket.compared, "compared"),
    bars((bucket) => bucket.diverged, "diverged"),
  );
}
