/* What each axis decides: how much worse the best strategy becomes when one value is given. Bars grow when worse. */
import { add, behind, make } from "./base.js";

const NAMES = { tp: "Tensor parallel (tp)", cp: "Context parallel (cp)", pp: "Pipeline stages (pp)", ep: "Expert parallel (ep)", micro_batch: "Micro batch", virtual_stages: "Chunks per stage (virtual_stages)",
  schedule: "Schedule", zero: "Sharding of replicas (zero)", sequence_parallel: "Sequence parallel", recompute: "Recomputation", offload: "Offloading", cut: "Cut into stages" };
const WHAT = { time: "time", cost: "money", energy: "energy", memory: "memory", robust: "time" };
const MOST = 12, FULL = 1;

export function influenceHint(data) {
  return "Give an axis one value: how much more " + WHAT[data.objective] + " the best strategy with it takes. A longer bar is worse; a full bar means twice as much or more."
    + (data.families_behind ? " Values that a bound ruled out are not shown." : "");
}
export function influence(element, data) {
  const axes = make("div", "axes");
  for (const [axis, values] of Object.entries(data.influence)) axes.append(one(NAMES[axis] || axis, Object.entries(values)));
  element.append(axes);
}
function one(title, every) {
  const least = Math.min(...every.map((e) => e[1])), limit = every.map((e) => e[1]).sort((a, b) => a - b)[MOST - 1] ?? Infinity;
  const shown = every.filter((e) => e[1] <= limit).slice(0, MOST), box = add(make("div"), make("h3", "", title));
  for (const [value, amount] of shown) {
    const inner = make("i"), extra = amount / least - 1, top = extra <= 1e-9, text = value === "True" ? "yes" : value === "False" ? "no" : value, name = make("div", "name", text);
    inner.style.width = 100 * Math.min(1, extra / FULL) + "%";
    name.title = text;
    box.append(add(make("div", top ? "level best" : "level"), name, add(make("div", "thin"), inner), make("div", "much", top ? "best" : behind(extra))));
  }
  if (every.length > shown.length) box.append(make("div", "more", "and " + (every.length - shown.length) + " more, further behind"));
  return box;
}
