/* The columns of a timeline as lanes of spans. Runs of one microbatch and category are blocks. */
import { capital, percent, seconds, whole } from "./base.js";

const HEIGHTS = { host: 9, compute: 26, communication: 15, data: 15, "send forward": 11, "send backward": 11, push: 13, update: 15, pull: 13, waiting: 13 };

/* First number of [from, to) whose `end(number)` is after t. */
export function after(t, from, to, end) {
  while (from < to) { const mid = (from + to) >> 1; if (end(mid) > t) to = mid; else from = mid + 1; }
  return from;
}

export class Lanes {
  constructor(line) {
    const size = line.gap.length;
    this.line = line;
    this.whole = Math.max(1, line.step_ns);
    this.begin = new Float64Array(size);
    this.finish = new Float64Array(size);
    this.critical = new Uint8Array(size);
    for (const i of line.critical) this.critical[i] = 1;
    this.many = line.count.length > 0;
    this.lanes = line.lanes.map((lane, n) => ({ ...lane, from: line.lane_start[n], to: line.lane_start[n + 1], blocks: this.blocks(n), top: 0, height: HEIGHTS[lane.stream] }));
    this.streams = Object.keys(HEIGHTS).filter((s) => this.lanes.some((lane) => lane.stream === s));
    this.finishOf = (i) => this.finish[i];
  }
  blocks(n) {
    const { line, begin, finish } = this, blocks = [];
    let at = 0, block = null;
    for (let i = line.lane_start[n]; i < line.lane_start[n + 1]; i += 1) {
      begin[i] = at + line.gap[i];
      at = finish[i] = begin[i] + line.duration[i];
      if (!block || block.category !== line.category[i] || block.microbatch !== line.microbatch[i]) {
        block = { begin: begin[i], finish: at, category: line.category[i], microbatch: line.microbatch[i], from: i, tasks: 0, busy: 0 };
        blocks.push(block);
      }
      block.finish = at;
      block.to = i + 1;
      block.tasks += this.many ? line.count[i] : 1;
      block.busy += line.duration[i] - (this.many ? line.idle[i] : 0);
    }
    return blocks;
  }
  /* The share of a span in which its lane is busy. */
  busy(i) { return this.many ? 1 - this.line.idle[i] / Math.max(1, this.line.duration[i]) : 1; }
  label(i) { return this.line.label[i] >= 0 ? this.line.labels[this.line.label[i]] : this.line.count[i] + " tasks"; }
  span(lane, i) { return { lane, span: i, begin: this.begin[i], finish: this.finish[i] }; }

  /* What is at time t of a lane, with `scale` pixels per nanosecond: a span, or while spans are too small, their block. */
  at(lane, t, scale) {
    const { begin, finish } = this, i = after(t, lane.from, lane.to, this.finishOf);
    if (i < lane.to && begin[i] <= t && (finish[i] - begin[i]) * scale >= 3) return this.span(lane, i);
    const block = lane.blocks[after(t, 0, lane.blocks.length, (k) => lane.blocks[k].finish)];
    if (block && block.begin <= t && (block.finish - block.begin) * scale >= 3) return { lane, block, begin: block.begin, finish: block.finish };
    for (const k of [i, i - 1]) {
      if (k >= lane.from && k < lane.to && begin[k] - t < 3 / scale && t - finish[k] < 3 / scale) return this.span(lane, k);
    }
    return null;
  }
  /* What a tooltip says of a span or block. */
  facts(item) {
    const { line } = this, row = line.rows[item.lane.row], first = item.block ? item.block.from : item.span, list = [];
    const category = line.categories[line.category[first]], microbatch = line.microbatch[first];
    list.push(["on", (row.server !== undefined ? "server " + row.server : "stage " + row.stage + ", rank " + row.rank) + ", " + item.lane.stream]);
    if (item.lane.side) list.push(["side", item.lane.side]);
    list.push(["kind", category + (microbatch >= 0 ? ", microbatch " + microbatch : "")]);
    list.push(["start", seconds(item.begin / 1e9)], ["duration", seconds((item.finish - item.begin) / 1e9)]);
    const tasks = item.block ? item.block.tasks : this.many ? line.count[item.span] : 1;
    if (tasks > 1) {
      const busy = item.block ? item.block.busy : line.duration[item.span] - line.idle[item.span];
      list.push(["tasks", whole(tasks) + ", busy " + percent(busy / (item.finish - item.begin))]);
    }
    if (item.span !== undefined && this.critical[item.span]) list.push(["path", "on the critical path"]);
    const title = item.block && tasks > 1 ? (category === "host" ? "Launches" : capital(category)) + (microbatch >= 0 ? " of microbatch " + microbatch : "") : this.label(first);
    return [title, list];
  }
  /* For each of `columns` slices of the step and each category: how many ranks compute. */
  profile(columns) {
    const sums = this.line.categories.map(() => new Float64Array(columns)), scale = columns / this.whole;
    for (const lane of this.lanes) {
      if (lane.stream !== "compute" || lane.side === "forecast") continue;
      for (let i = lane.from; i < lane.to; i += 1) {
        const a = this.begin[i] * scale, b = Math.min(columns, this.finish[i] * scale), sum = sums[this.line.category[i]], busy = this.busy(i);
        for (let x = Math.floor(a); x < b; x += 1) sum[x] += (Math.min(b, x + 1) - Math.max(a, x)) * busy;
      }
    }
    return { columns, sums };
  }
}
