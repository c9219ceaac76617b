/* What makes the interval of a step as wide as it is. */
import { add, capital, legend, make, percent, stackedBar } from "./base.js";

const CAUSES = {
  products: ["forward", "Products"], attention: ["backward", "Attention"], memory_bound: ["activations", "Memory-bound operators"], within_nodes: ["optimizer", "Messages within nodes"],
  between_nodes: ["communication", "Messages between nodes"], host: ["host", "Host"], between_sources: ["other", "Machines and frameworks differ"], scale: ["wait", "More devices than most runs"],
  repeats: ["forward", "Runs of this cluster differ"], unfamiliar: ["activations", "Unlike the runs that calibrated it"], stalls: ["communication", "Stalls"],
};

export function doubt(element, shares) {
  const parts = Object.entries(shares).filter(([, share]) => share >= 0.005).map(([name, share]) => [...(CAUSES[name] || ["other", capital(name)]), share]);
  if (parts.length) add(element, make("h3", "", "What makes the interval this wide"), stackedBar(parts, percent), legend(parts, percent));
}
