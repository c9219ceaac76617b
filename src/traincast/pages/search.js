/* The page of a search. */
import { add, behind, bytes, card, code, count, footer, header, make, money, percent, seconds, secondsParts, tile, tiles, warnings, whole } from "./base.js";
import { candidates, clusters, front, naive, place, shares } from "./candidates.js";
import { influence, influenceHint } from "./influence.js";
import { scatter, scatterHint } from "./scatter.js";

const GOALS = { time: "fastest", cost: "cheapest", energy: "least energy", memory: "least memory", robust: "least regret" };

export function search(root, data) {
  const several = data.clusters.length > 1, trained = data.num_trainable_parameters === data.num_parameters ? "" : ` (${count(data.num_trainable_parameters)} trained)`;
  header(root, {
    kind: "search", title: data.model, badge: make("span", data.sure >= 0.7 ? "badge good" : "badge unsure", data.objective === "memory" ? "Counted, not estimated" : percent(data.sure) + " sure"),
    facts: [["on", several ? data.clusters.length + " clusters" : data.where], ["global batch", whole(data.global_batch)], ["tokens per sample", data.tokens_per_sample ? whole(data.tokens_per_sample) : ""],
      ["runtime", data.runtime], ["precision", data.precision], ["parameters", count(data.num_parameters) + trained], ["looked for", GOALS[data.objective]]],
  });
  answer(card(root, "The answer"), data);
  numbers(tiles(root), data);
  warnings(root, data.warnings);
  let mark = () => {};
  candidates(card(root, "The best strategies", "Chance: how likely each is the best of those compared. A tie may be as good as the first. Regret: the expected loss against the best. A strategy marked “no evidence” uses a technique that no measured run near this one has used; the order is by expected time. The star marks the best of a column."), data, (c) => mark(c));
  mark = scatter(card(root, "Time against memory", scatterHint(data.plot)), data);
  shares(card(root, "Where their steps go", "The average over all ranks. A longer bar is a slower step."), data);
  influence(card(root, "What each axis decides", influenceHint(data)), data);
  if (several) clusters(card(root, "The clusters", "The best strategy on each. “Against the best” is how many times as long (or costly) it is in 90 % of cases; the chance is that the best of all is there."), data);
  naive(card(root, "Without a search", "What people often choose" + elsewhere(data) + ", and how far behind the best it is."), data);
  front(card(root, "The front", "No other strategy beats one of these in time, memory and cost at once."), data);
  counts(card(root, "How it was found"), data);
  footer(root, "A forecast");
}

const elsewhere = (data) => data.clusters.length > 1 ? ", on " + place(data.clusters[0]) : "";
/* 2, 3, 4 and 7 as "2–4, 7". */
function numbersOf(ranks) {
  const runs = [];
  for (const r of ranks) { const last = runs[runs.length - 1]; if (last && last[1] === r - 1) last[1] = r; else runs.push([r, r]); }
  return runs.map(([a, b]) => a === b ? a : a + "–" + b).join(", ");
}
const listed = (ties) => (ties.length > 1 ? "numbers " : "number ") + numbersOf(ties);
function answer(element, data) {
  const { best } = data, ties = data.candidates.map((c, n) => c.tie ? n + 1 : 0).filter(Boolean), say = (text) => { const p = make("p", "say", text); element.append(p); return p; };
  add(say(data.clusters.length > 1 ? "On " + place(best) + ", train with " : "Train with "), code(best.strategy), ": a step takes " + seconds(best.step_s) + " (" + seconds(best.low_s) + " to " + seconds(best.high_s)
    + ") and needs " + bytes(best.peak_memory_bytes) + " of the " + bytes(best.memory_capacity_bytes) + " of a device. It is limited by " + best.limiter + ".");
  if (data.num_steps) say("The job of " + whole(data.num_steps) + " steps takes " + seconds(best.job_s) + " and costs " + money(best.cost) + ".");
  const limits = [[data.deadline_s, best.in_time, () => "ends within " + seconds(data.deadline_s)], [data.budget, best.in_budget, () => "costs at most " + money(data.budget)]]
    .filter(([given]) => given !== null && given !== undefined).map(([, chance, what]) => what() + " with a chance of " + percent(chance));
  if (limits.length) say("It " + limits.join(" and ") + "; you asked for " + percent(data.confidence) + ".");
  say(data.objective === "memory" ? "Memory is counted, not estimated: no other strategy needs less" + (ties.length ? "; " + listed(ties) + " of the list need the same." : ".")
    : "It has a " + percent(data.sure) + " chance of being the best of those compared" + (ties.length ? "; " + listed(ties) + " of the list may be as good." : ".") + (best.regret === null ? "" : " Its expected loss against the best is " + share(best.regret) + "."));
  evidence(element, data, say);
  const compared = data.naive.filter((n) => n.candidate && !n.reason && n.candidate.behind > 0.0005);
  if (compared.length) say("Without a search" + elsewhere(data) + ", common choices are behind the best: " + compared.map((n) => n.name + " " + behind(n.candidate.behind)).join("; ") + ".");
}
/* What no measured run near this one has used: of the first strategy, and of the fastest forecast. */
function evidence(element, data, say) {
  if (data.objective === "memory") return;
  const { best, fastest } = data, missing = (c) => c.evidence.filter((e) => e.words).map((e) => e.words).join("; ");
  if (best.marked) say("Without evidence: " + missing(best) + ". It comes first all the same: " + data.reason + ".");
  else if (best.evidence.length) say("Every technique of it was used by measured runs near this one.");
  if (fastest.marked && fastest.strategy !== best.strategy) add(say("The fastest forecast of all is "), code(fastest.strategy), ": " + seconds(fastest.step_s) + ", expected " + seconds(fastest.step_s * fastest.expected)
    + ". Without evidence: " + missing(fastest) + ".");
}
const share = (value) => (100 * value).toFixed(1) + " %";
function numbers(parent, data) {
  const { best } = data;
  tile(parent, "Step time", secondsParts(best.step_s), seconds(best.low_s) + " to " + seconds(best.high_s));
  if (data.tokens_per_sample) tile(parent, "Throughput", [count(best.tokens_per_s), "tokens/s"], count(best.samples_per_s) + " samples/s");
  else tile(parent, "Throughput", [count(best.samples_per_s), "samples/s"], count(best.samples_per_s / best.num_devices) + " per device");
  tile(parent, "Model FLOPs utilization", [(best.mfu * 100).toFixed(1), "%"], "of the devices’ peak in " + data.precision, best.mfu);
  tile(parent, "Peak memory", bytes(best.peak_memory_bytes).split(" "), percent(best.peak_memory_bytes / best.memory_capacity_bytes) + " of " + bytes(best.memory_capacity_bytes), best.peak_memory_bytes / best.memory_capacity_bytes);
  if (data.num_steps) tile(parent, "Whole job", secondsParts(best.job_s), whole(data.num_steps) + " steps, " + money(best.cost));
}
function counts(element, data) {
  const list = make("dl", "counts");
  for (const [name, value] of [["strategies evaluated", whole(data.evaluated)], ["of them fit", whole(data.feasible)], ["families looked at", whole(data.families)], ["families cut by a bound", whole(data.families_behind)],
    ["families beyond memory", whole(data.families_beyond_memory)], ["time", seconds(data.seconds)], ["per CPU second", data.cpu_seconds ? whole(data.evaluated / data.cpu_seconds) : "–"],
    ["searcher", data.searcher], ["engine", data.engine]]) list.append(add(make("div"), make("dt", "", name), make("dd", "", value)));
  element.append(list);
}
