/* The whole job, and the parameter servers of one that has them. */
import { add, count, legend, make, percent, seconds, stackedBar, three, whole } from "./base.js";
import { table } from "./table.js";

const PARTS = [["startup", "Start-up"], ["data_loading", "Data loading"], ["steps", "Steps"], ["checkpoints", "Checkpoints"], ["evaluation", "Evaluation"]];

export function jobSummary(job) {
  return [seconds(job.job_s) + " for " + whole(job.num_steps) + " steps", job.cost > 0 ? "US$ " + whole(job.cost) : "", job.energy_j > 0 ? count(job.energy_j / 3.6e6) + " kWh" : ""].filter(Boolean).join(" · ");
}
export function job(element, data) {
  const parts = PARTS.map(([name, title]) => [name, title, data[name + "_s"]]);
  add(element, stackedBar(parts, seconds, { big: true }), legend(parts, seconds, data.job_s));
}
export function servers(element, run) {
  const rows = run.nodes.map((node, n) => ({ n, node, nic: run.nic_utilization[n], update: run.update_utilization[n] }));
  const text = (run.own_nodes ? "The servers have nodes of their own." : "The servers share the nodes of the workers.") + " All workers together make " + three(run.worker_steps_per_s)
    + " steps/s. Weights are " + three(run.mean_staleness) + " updates old on average, and " + run.max_staleness + " at most.";
  element.append(make("p", "hint", text), table(rows, [
    { name: "Server", value: (r) => r.n, text: (r) => "server " + r.n },
    { name: "Node", value: (r) => r.node, text: (r) => String(r.node), right: true },
    { name: "Network of its node in use", value: (r) => r.nic, text: (r) => percent(r.nic), right: true },
    { name: "Time spent on updates", value: (r) => r.update, text: (r) => percent(r.update), right: true },
  ], { label: "Parameter servers" }).element);
}
