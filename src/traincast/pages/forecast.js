/* The page of a forecast. */
import { add, bytes, card, count, footer, header, make, percent, seconds, secondsParts, three, tile, tiles, warnings, whole } from "./base.js";
import { breakdown } from "./breakdown.js";
import { doubt } from "./doubt.js";
import { interval } from "./interval.js";
import { job, jobSummary, servers } from "./job.js";
import { memory, memoryOverTime } from "./memory.js";
import { neighbours, neighboursHint } from "./neighbours.js";
import { path } from "./path.js";
import { sources } from "./sources.js";
import { timeline, timelineHint } from "./timeline.js";
import { bound, use, useHint } from "./use.js";
import { waits } from "./waits.js";

export function forecast(root, { report, timeline: line, resources }) {
  const trained = report.num_trainable_parameters === report.num_parameters ? "" : ` (${count(report.num_trainable_parameters)} trained)`;
  header(root, {
    kind: "forecast", title: report.model, badge: fits(report),
    facts: [["on", report.cluster], ["strategy", report.strategy], ["runtime", report.runtime], ["precision", report.precision], ["global batch", whole(report.global_batch)],
      ["micro-batch", whole(report.micro_batch)], ["devices", whole(report.num_devices)], ["parameters", count(report.num_parameters) + trained], ["conditions", report.conditions && report.conditions.text]],
  });
  numbers(tiles(root), report);
  warnings(root, report.warnings);
  const sure = card(root, "How sure the step time is");
  interval(sure, report);
  doubt(sure, report.doubt);
  breakdown(card(root, "Where the step goes", "Every instant of a device belongs to one part. The first bar is the average over all ranks."), report);
  bound(card(root, "What bounds the step", "The time of an operator is divided as computing at the peak rate and moving its bytes at the memory’s bandwidth would take it."), report.split);
  if (report.evidence.length) neighbours(card(root, "What was measured nearby", neighboursHint), report);
  if (report.waits.length > 1) waits(card(root, "Who waits for whom", "Ranks that differ finish at different times; the others wait for the slowest."), report);
  timeline(card(root, "What each device does when", timelineHint(line)), line, report);
  if (resources) use(card(root, "What the step draws from its machines", useHint(resources)), resources);
  const two = make("div", "two"), right = make("div");
  root.append(two);
  path(card(two, "What decides the step time", "Work on the critical path: make this shorter, and the step gets shorter."), report);
  two.append(right);
  memory(card(right, "Memory", "The peak of one rank of each stage."), report);
  if (report.memory_over_time.length > 1) memoryOverTime(card(right, "Memory over time", "Stage " + report.fullest_stage + ", the fullest, from its first pass to its last."), report);
  sources(card(right, "Where the numbers come from", "Share of all device time, by the source of its estimate."), report);
  if (report.servers) servers(card(root, "Parameter servers"), report.servers);
  if (report.job) job(card(root, "The whole job", jobSummary(report.job)), report.job);
  footer(root, "A forecast");
}

function fits(report) {
  const p = report.fits_probability, chance = p > 0.99 ? "over 99 %" : p < 0.01 ? "under 1 %" : Math.round(p * 100) + " %";
  if (report.fits) return make("span", "badge good", "✓ Fits in memory with " + chance + " chance");
  return make("span", "badge bad", report.verdict === "may not fit" ? "✕ May not fit in memory: " + chance + " chance" : "✕ Does not fit in memory");
}
function numbers(parent, report) {
  tile(parent, "Step time", secondsParts(report.step_s), seconds(report.low_s) + " to " + seconds(report.high_s));
  if (report.tokens_per_sample > 0) tile(parent, "Throughput", [count(report.tokens_per_s), "tokens/s"], count(report.samples_per_s) + " samples/s");
  else tile(parent, "Throughput", [count(report.samples_per_s), "samples/s"], count(report.samples_per_s / report.num_devices) + " per device");
  tile(parent, "Model FLOPs utilization", [report.mfu === null ? "–" : (report.mfu * 100).toFixed(1), "%"], "of the devices’ peak in " + report.precision, report.mfu || 0);
  const room = report.peak_memory_bytes / report.memory_capacity_bytes;
  tile(parent, "Peak memory", bytes(report.peak_memory_bytes).split(" "), (room < 2 ? percent(room) + " of " : three(room) + " times the ") + bytes(report.memory_capacity_bytes) + "; " + bytes(report.memory_low_bytes) + " to "
    + bytes(report.memory_high_bytes), room, report.fits ? "" : "var(--bad)");
  if (report.host_memory_bytes > 0) {
    const there = report.host_memory_capacity_bytes;
    tile(parent, "Host memory", bytes(report.host_memory_bytes).split(" "), there ? percent(report.host_memory_bytes / there) + " of " + bytes(there) + " per node" : "per node; its size is not known",
      there ? report.host_memory_bytes / there : undefined);
  }
  if (report.job) add(tile(parent, "Whole job", secondsParts(report.job.job_s), [count(report.job.num_steps) + " steps", report.job.cost > 0 ? "US$ " + whole(report.job.cost) : ""].filter(Boolean).join(" · ")));
}
