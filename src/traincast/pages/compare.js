/* The page of a comparison: a run of the testbed and its forecast. */
import { card, header, make, percent, seconds, secondsParts, tile, tiles, warnings, whole } from "./base.js";
import { activities, disagreements, size } from "./activity.js";
import { timeline } from "./timeline.js";

export function compare(root, { comparison: found, slow, timeline: line }) {
  header(root, {
    kind: "comparison", title: found.model,
    facts: [["strategy", found.strategy], ["ranks", whole(found.num_ranks)], ["compute", found.compute === "real" ? "real" : "emulated " + found.compute], ["network", found.network],
      ["steps", whole(found.num_steps)], ["events", found.events || "none"]],
  });
  numbers(tiles(root), found);
  warnings(root, found.cannot_carry ? ["This machine cannot carry the run: " + found.cannot_carry, ...found.warnings] : found.warnings);
  timeline(card(root, "The run and its forecast", hint(line)), line, { conditions: { slow } });
  disagreements(card(root, "Worst disagreements", "As shares of the measured step."), found);
  activities(card(root, "Activity error by device", "Start, end and busy time of each class of spans: forecast minus measured, as a share of the measured step. The noise is the error of one measured step against the mean of all."), found);
  root.append(make("footer", "", "A measured run beside its forecast. This file is complete: it loads nothing and sends nothing."));
}

function numbers(parent, found) {
  tile(parent, "Measured step", secondsParts(found.measured_s), "mean of " + whole(found.num_steps) + " steps, which vary by " + percent(found.repeat_cv));
  tile(parent, "Forecast step", secondsParts(found.predicted_s), found.events ? percent(found.estimated_by.measured || 0) + " of the device time from events" : "times from bundles and physics");
  if (found.cannot_carry) return;
  tile(parent, "Batch error", size(found.batch_error).split(" "), "noise of the machine: " + percent(found.noise));
  tile(parent, "Activity error", percent(found.activity_error).split(" "), "noise of the machine: " + percent(found.activity_noise));
  if (found.span_shift !== null) tile(parent, "Shift of single spans", percent(found.span_shift).split(" "), "start and end, matched by order");
}
function hint(line) {
  const merged = line.merged_below_s ? " Spans shorter than " + seconds(line.merged_below_s) + " are merged with their neighbours." : "";
  return "Step " + line.step + " of the run, the one nearest to the median, above the forecast of each lane. Dashed lines: the ends of the two steps (blue: forecast)." + merged;
}
