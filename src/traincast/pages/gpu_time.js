/* Where the GPU time went, for each policy. */
import { add, legend, make, stackedBar, whole } from "./base.js";
import { hours } from "./policies.js";

const PARTS = [["work", "Work that lasted"], ["overhead", "Checkpoints, restores, restarts"], ["lost", "Lost to failures"], ["down", "Out of service"],
  ["waited", "Free while jobs waited"], ["idle", "Free, no job waiting"]];

export function gpuTime(element, choice) {
  const several = choice.policies.length > 1, outer = make("div"), partsOf = (p) => PARTS.map(([key, title]) => [key, title, p.gpu_time[key]]), sum = (p) => partsOf(p).reduce((s, part) => s + part[2], 0);
  const longest = Math.max(...choice.policies.map(sum)), used = PARTS.filter(([key]) => choice.policies.some((p) => p.gpu_time[key] > 0));
  const draw = () => {
    const rows = make("div", several ? "rows whole" : "");
    choice.policies.forEach((p, n) => {
      const bar = stackedBar(partsOf(p), hours, { big: !several, room: longest, open: true });
      rows.append(several ? add(make("div", "row"), add(make("div", "who"), make(n === choice.chosen ? "b" : "span", "", p.policy)), bar, make("div", "what", whole(sum(p) / 3600) + " GPU h")) : bar);
    });
    const p = choice.policy, key = legend(used.map(([name, title]) => [name, title, p.gpu_time[name]]), hours);
    outer.replaceChildren(rows, key, make("p", "hint", "From the first submission to the last end" + (several ? ". A longer bar is a longer run. Amounts are those of " + p.policy : "") + "."));
  };
  choice.on((what) => { if (what === "chosen") draw(); });
  draw();
  element.append(outer);
}
