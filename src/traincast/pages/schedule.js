/* The page of a queue under one or several policies. */
import { card, footer, header, make, percent, seconds, secondsParts, three, tile, tiles, warnings, whole } from "./base.js";
import { curve, distribution, lineLegend } from "./curves.js";
import { gpuTime } from "./gpu_time.js";
import { occupancy, occupancyHint, TimeWindow } from "./occupancy.js";
import { choose, Choice, compare, hours, virtualClusters } from "./policies.js";

export function schedule(root, data) {
  const { about, policies } = data, choice = new Choice(policies), time = new TimeWindow(Math.max(data.span_s, 1e-9)), several = policies.length > 1;
  const types = Object.keys(about.gpu_types).filter(Boolean);
  header(root, {
    kind: "schedule", title: about.trace,
    facts: [["jobs", whole(policies[0].num_jobs)], ["nodes", whole(about.num_nodes)], ["GPUs", whole(about.num_gpus)], ["types", types.map((t) => t + " × " + whole(about.gpu_types[t])).join(", ")],
      [several ? "policies" : "policy", several ? String(policies.length) : policies[0].policy], ["placement", about.placement], ["estimates", about.estimates], ["load", about.load === 1 ? "" : "× " + three(about.load)], ["seed", String(about.seed)]],
  });
  if (several) choose(root, choice);
  numbers(tiles(root), choice);
  warnings(root, about.notes);
  if (several) compare(card(root, "Policies side by side", "The star marks the best of a column. Select a heading to sort, or a policy above to show it."), choice);
  const main = card(root, "Who holds which GPU when", occupancyHint(data));
  occupancy(main, data, choice, time);
  const waiting = Math.max(1, ...policies.map((p) => p.curves.waiting.reduce((a, b) => Math.max(a, b), 0)));
  main.append(make("h3", "", "GPUs in use"));
  curve(main, choice, time, { name: "used", title: "in use", label: "Share of GPUs in use over time", most: 1, format: percent, outages: true });
  main.append(make("h3", "", "Jobs waiting"));
  curve(main, choice, time, { name: "waiting", title: "jobs", label: "Jobs waiting over time", most: waiting, format: three });
  lineLegend(main, choice);
  const two = make("div", "two");
  root.append(two);
  distribution(card(two, "Completion time", "The share of jobs that ended within a time from their submission. Higher and further left is better."), choice, { name: "jct", title: "time from submission to end", label: "Distribution of completion times" });
  distribution(card(two, "Queueing", "The share of jobs that spent at most a time without GPUs. Higher and further left is better."), choice, { name: "queue", title: "time without GPUs", label: "Distribution of queueing times" });
  gpuTime(card(root, "Where the GPU time went"), choice);
  virtualClusters(root, choice);
  footer(root, "A simulation");
}

function numbers(parent, choice) {
  const draw = () => {
    const p = choice.policy;
    parent.replaceChildren();
    tile(parent, "Mean completion time", secondsParts(p.mean_jct_s), "median " + seconds(p.median_jct_s) + " · 99th percentile " + seconds(p.p99_jct_s));
    tile(parent, "Mean queueing", secondsParts(p.mean_queue_s), "median " + seconds(p.median_queue_s) + " · 99th percentile " + seconds(p.p99_queue_s));
    tile(parent, "Makespan", secondsParts(p.makespan_s), "first submission to last end");
    tile(parent, "GPUs in use", [(100 * p.utilization).toFixed(1), "%"], "of the GPU time was held by jobs", p.utilization);
    tile(parent, "Fragmentation", [(100 * p.fragmentation).toFixed(1), "%"], "of free GPUs are on nodes in use", p.fragmentation);
    tile(parent, "Fairness ρ", [three(p.mean_rho), ""], "at worst " + three(p.max_rho) + "; 1 is fair, more is worse");
    tile(parent, "Preemptions", [whole(p.preemptions), ""], hours(p.overhead_gpu_s) + " of overhead");
    tile(parent, "Restarts", [whole(p.restarts), ""], hours(p.lost_gpu_s) + " of work lost");
  };
  choice.on((what) => { if (what === "chosen") draw(); });
  draw();
}
