// Figures over time: rates and quantiles between snapshots. Counts only grow while a server runs.

const MAX_POINTS = 121;
// A second's requests are too few for a quantile.
const WINDOW_S = 15;

/** A protobuf message in JSON has 64-bit numbers as text, and leaves out empty maps and lists. */
const number = (value) => Number(value ?? 0);

/** The value below which a share of the durations lies; null when there are none. */
export function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  let left = share * total;
  for (let i = 0; i < bounds.length; i++) {
    const low = i === 0 ? 0 : bounds[i - 1];
    if (left <= counts[i]) return low + (bounds[i] - low) * (left / counts[i]);
    left -= counts[i];
  }
  return bounds[bounds.length - 1];
}

export class History {
  constructor() {
    this.snapshots = [];
    this.points = [];
  }

  /** Add a snapshot; gives the newest point. */
  push(snapshot) {
    const last = this.snapshots.at(-1);
    // The server was started anew.
    if (last && snapshot.uptime_s < last.uptime_s) this.snapshots = [];
    this.snapshots.push(snapshot);
    this.points.push(this.#point(snapshot, this.snapshots.at(-2) ?? snapshot));
    if (this.snapshots.length > MAX_POINTS) this.snapshots.shift();
    if (this.points.length > MAX_POINTS) this.points.shift();
    return this.points.at(-1);
  }

  #point(now, before) {
    const seconds = now.uptime_s - before.uptime_s;
    const since = this.snapshots.find((s) => now.uptime_s - s.uptime_s <= WINDOW_S) ?? before;
    const grown = (name, from) => number(now[name]) - number(from[name]);
    const rate = (name) => (seconds > 0 ? grown(name, before) / seconds : null);
    const computed = grown("num_computed_tokens", since);
    const padded = grown("num_padded_tokens", since);
    return {
      running: number(now.load.num_running),
      waiting: number(now.load.num_waiting),
      generated: rate("num_generated_tokens"),
      prefilled: rate("num_prefill_tokens"),
      padding: computed + padded > 0 ? padded / (computed + padded) : null,
      ttft: this.#quantiles("time_to_first_token", now, since),
      itl: this.#quantiles("inter_token", now, since),
    };
  }

  #quantiles(name, now, since) {
    const bounds = now[name].bounds_s;
    const counts = now[name].counts.map((n, i) => number(n) - number(since[name].counts[i]));
    return { half: quantile(bounds, counts, 0.5), most: quantile(bounds, counts, 0.95) };
  }
}

/** Seconds for people. */
export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** A share for people. */
export const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);

/** A count or a rate for people. */
export function amount(value) {
  if (value === null) return "–";
  if (value < 10 && value % 1) return value.toFixed(1);
  return Math.round(value).toLocaleString("en");
}
