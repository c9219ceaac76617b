/* Where a step goes: the whole of it, and each stage. */
import { add, legend, make, percent, seconds, stackedBar } from "./base.js";

export const PARTS = [["compute", "Compute"], ["exposed_communication", "Exposed communication"], ["bubble", "Bubble (waiting)"], ["optimizer", "Optimizer"], ["overhead", "Overhead"]];
const partsOf = (entry) => PARTS.map(([name, title]) => [name, title, entry[name + "_s"]]);
export const who = (entry, slow) => add(make("div", "who"), make("b", "", "Stage " + entry.stage), document.createTextNode(" · rank " + entry.rank), slow ? make("span", "slow", "slow") : null);

export function breakdown(element, report) {
  const parts = report.calibrated_s > 0 ? [...partsOf(report), ["other", "Calibrated", report.calibrated_s]] : partsOf(report);
  add(element, stackedBar(parts, seconds, { big: true }), legend(parts, seconds, report.step_s));
  if (report.ranks.length < 2) return;
  const slow = new Set((report.conditions ? report.conditions.slow : []).map((s) => s.rank)), rows = make("div", "rows lined");
  for (const entry of report.ranks) {
    rows.append(add(make("div", "row"), who(entry, slow.has(entry.rank)), stackedBar(partsOf(entry), seconds, { room: report.step_s }), make("div", "what", percent(entry.utilization) + " computing")));
  }
  rows.tabIndex = 0;
  rows.setAttribute("role", "region");
  rows.setAttribute("aria-label", "Where the step of each stage goes");
  element.append(rows);
}
