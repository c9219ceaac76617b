/* Where the numbers come from: measured, learned or analytical, and what each bundle that was named estimated. */
import { breakable, capital, legend, make, percent, stackedBar } from "./base.js";
import { table } from "./table.js";

const MEANS = { measured: "Measured on this device", learned: "Learned from measurements", analytical: "Analytical (datasheet)" };

export function sources(element, report) {
  const parts = Object.entries(report.estimated_by).map(([name, share]) => [name, MEANS[name] || capital(name), share]);
  element.append(stackedBar(parts, percent), legend(parts.filter((p) => p[2] > 0), percent));
  if (!report.bundles.length) return;
  const share = (name, key) => ({ name, value: (b) => b[key], text: (b) => percent(b[key]), right: true });
  const made = table(report.bundles, [
    { name: "Bundle", value: (b) => b.path, cell: (b) => breakable(make("span"), b.path), className: "label" },
    share("All works", "covered"), share("Operators", "operators"), share("Messages", "collectives"),
  ], { label: "Bundles" });
  element.append(make("h3", "", "Your bundles"), make("p", "hint", "The share of the time of works that each bundle estimated."), made.element);
}
