/* Ranks that differ: how long each computes and waits, the slow ones, and who waits for them. */
import { legend, make, percent, plural, seconds, shape, three, whole } from "./base.js";
import { chart, follow, note, ticks } from "./chart.js";

export function waits(element, report) {
  const ranks = [...report.waits].sort((a, b) => a.rank - b.rank), slow = new Map((report.conditions ? report.conditions.slow : []).map((s) => [s.rank, s.factor]));
  element.append(make("p", "say", sentence(ranks, slow)));
  const top = Math.max(...ranks.map((r) => r.busy_s + r.waiting_s)) * 1.02, last = ranks.length, unit = top < 1e-3 ? [1e-6, "µs"] : top < 1 ? [1e-3, "ms"] : [1, "s"];
  chart(element, {
    height: 190, label: "Time that each rank is busy and waits", name: "columns",
    axes: (wide, high) => ({
      x: { low: 0, high: last, ticks: ticks(0, last - 1, Math.min(last, wide / 60)).filter(Number.isInteger).map((n) => [n + 0.5, whole(ranks[n].rank)]), title: "rank" },
      y: { low: 0, high: top, ticks: ticks(0, top / unit[0], high / 40).map((t) => [t * unit[0], three(t)]), title: "time (" + unit[1] + ")" },
    }),
    draw: (plot) => columns(plot, ranks, slow),
  });
  const key = legend([["compute", "busy"], ["waiting", "waiting, for messages or for other ranks"], ...(slow.size ? [["slow-key", "slow rank"]] : [])]);
  element.append(key);
}
/* One sentence for all: whom most ranks wait for, and how long. */
function sentence(ranks, slow) {
  const waited = new Map();
  for (const r of ranks) if (r.for_rank >= 0) waited.set(r.for_rank, [...(waited.get(r.for_rank) || []), r]);
  const text = [...slow].slice(0, 4).map(([rank, factor]) => "Rank " + rank + " computes " + three(factor) + " times slower.");
  if (slow.size > 4) text.push((slow.size - 4) + " more ranks are slow.");
  const [first] = [...waited].sort((a, b) => b[1].length - a[1].length);
  if (!first) return [...text, "No rank waits for another."].join(" ");
  const [rank, waiters] = first, mean = waiters.reduce((s, r) => s + r.for_rank_s, 0) / waiters.length;
  text.push(plural(waiters.length, "rank") + " of " + whole(ranks.length) + (waiters.length === 1 ? " waits" : " wait") + " most for rank " + rank + ": " + seconds(mean) + " of the step on average.");
  return text.join(" ");
}
function columns(plot, ranks, slow) {
  const { svg, x, y, room } = plot, gap = x(1) - x(0) > 4 ? 1 : 0, busy = [], waiting = [];
  ranks.forEach((r, n) => {
    const box = (from, to) => "M" + x(n).toFixed(1) + " " + y(from).toFixed(1) + "H" + (x(n + 1) - gap).toFixed(1) + "V" + y(to).toFixed(1) + "H" + x(n).toFixed(1) + "Z";
    busy.push(box(0, r.busy_s));
    waiting.push(box(r.busy_s, r.busy_s + r.waiting_s));
  });
  svg.append(shape("path", { d: busy.join("") }, "busy"), shape("path", { d: waiting.join("") }, "waiting"));
  for (const [n, r] of ranks.entries()) {
    if (!slow.has(r.rank)) continue;
    svg.append(shape("rect", { x: x(n), y: y(r.busy_s), width: Math.max(2, x(n + 1) - x(n) - gap), height: y(0) - y(r.busy_s) }, "slow"));
    note(plot, "rank " + r.rank, Math.min(Math.max(x(n + 0.5), room.left + 24), plot.wide - 30), room.top + 2, "middle", "note bad");
  }
  follow(plot, (px) => {
    const n = Math.min(ranks.length - 1, Math.max(0, Math.floor(x.invert(px)))), r = ranks[n], total = r.busy_s + r.waiting_s || 1;
    const list = [["busy", seconds(r.busy_s)], ["waits", seconds(r.waiting_s) + " (" + percent(r.waiting_s / total) + ")"]];
    if (r.for_rank >= 0) list.push(["most for", "rank " + r.for_rank + ", " + seconds(r.for_rank_s)]);
    if (slow.has(r.rank)) list.push(["slow", three(slow.get(r.rank)) + " times"]);
    return { tip: ["Rank " + r.rank, list], mark: [x(n), room.top, Math.max(1, x(n + 1) - x(n)), y(0) - room.top] };
  });
}
