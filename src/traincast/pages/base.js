/* What all views share: numbers as people write them, elements, tooltips, colours. */

export const three = (x) => {
  if (x === null || x === undefined) return "–";
  const t = Number(x.toPrecision(3));
  return Math.abs(t) >= 1e6 ? t.toExponential(2) : t.toLocaleString("en", { maximumFractionDigits: 6 });
};
const UNITS = [[1e-6, 1e-9, "ns"], [1e-3, 1e-6, "µs"], [1, 1e-3, "ms"], [180, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"], [Infinity, 86400, "d"]];
/* A time in seconds as [number, unit]. */
export function secondsParts(s) {
  if (s === null || s === undefined) return ["–", ""];
  const a = Math.abs(s), [, scale, unit] = a === 0 ? [0, 1, "s"] : UNITS.find(([below]) => a < below);
  return [three(s / scale), unit];
}
export const seconds = (s) => secondsParts(s).join(" ").trim();
export function bytes(b) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  while (Math.abs(b) >= 1024 && k < 4) { b /= 1024; k += 1; }
  return (k === 0 ? b.toFixed(0) : b.toFixed(1)) + " " + units[k];
}
export function count(x) {
  for (const [scale, unit] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e3, " k"]]) if (Math.abs(x) >= scale) return three(x / scale) + unit;
  return three(x);
}
export const whole = (x) => x === null || x === undefined ? "–" : Math.round(x).toLocaleString("en");
export const percent = (x) => !(x > 0) ? "0 %" : x < 0.0005 ? "< 0.1 %" : (x * 100).toFixed(x >= 0.0995 ? 0 : 1) + " %";
export const money = (x) => x === null || x === undefined ? "–" : "$" + (x >= 100 ? whole(x) : Number(x.toPrecision(3)));
/* How much more than the best: +12.3 %, or 2.4 × from twice as much on. */
export const behind = (x) => x >= 1 ? three(1 + x) + " ×" : (x < 0 ? "−" : "+") + (100 * Math.abs(x)).toFixed(1) + " %";
export const capital = (text) => text && text[0].toUpperCase() + text.slice(1);
export const plural = (n, one) => whole(n) + " " + one + (n === 1 ? "" : "s");

/* Elements. Every string of the data becomes text, never markup. */
export function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}
export function add(parent, ...children) { parent.append(...children.filter((c) => c !== null && c !== undefined)); return parent; }
const NAMESPACE = document.getElementById("svg").namespaceURI;
export function shape(kind, attributes, name) {
  const node = document.createElementNS(NAMESPACE, kind);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (name) node.setAttribute("class", name);
  return node;
}
/* Text that may break after a dot, colon, comma, slash or underscore. */
export function breakable(node, text) {
  for (const piece of text.split(/(?<=[.:_/, ])/)) add(node, document.createTextNode(piece), make("wbr"));
  return node;
}
export const code = (text) => breakable(make("code"), text);
export function button(text, act, title) {
  const node = make("button", "", text);
  node.type = "button";
  if (title) { node.title = title; node.setAttribute("aria-label", title); }
  node.addEventListener("click", act);
  return node;
}

/* A card with a title, and the sentence that says how to read it. */
export function card(parent, title, hint, name) {
  const node = make("section", "card" + (name ? " " + name : "")), head = add(make("div", "head"), make("h2", "", title));
  if (hint) head.append(make("p", "hint", hint));
  parent.append(add(node, head));
  return node;
}
export function header(root, { kind, title, facts, badge }) {
  document.title = title + " · Traincast " + kind;
  const list = make("ul", "facts");
  for (const [name, value] of facts) if (value) list.append(add(make("li", "", name + " "), make("b", "", value)));
  const text = add(make("div"), make("div", "kicker", "Traincast " + kind), breakable(make("h1"), title), list);
  root.append(add(make("header"), text, badge || null));
}
export function footer(root, what) {
  root.append(make("footer", "", what + ", not a measurement. This file is complete: it loads nothing and sends nothing."));
}
export function warnings(root, texts) {
  if (!texts.length) return;
  const listed = (some) => { const list = make("ul", "warnings"); for (const text of some) list.append(breakable(make("li"), text)); return list; };
  const first = texts.slice(0, 5), rest = texts.slice(5), box = card(root, "Warnings", "", "alert");
  box.append(listed(first));
  if (rest.length) box.append(add(make("details"), make("summary", "", rest.length + " less important warnings"), listed(rest)));
}
export function tile(parent, name, [value, unit], detail, share, colour) {
  const node = add(make("div", "tile"), make("div", "name", name), add(make("div", "value", value), make("small", "", unit)), make("div", "detail", detail));
  if (share !== undefined) {
    const inner = make("i");
    inner.style.width = Math.min(100, share * 100) + "%";
    if (colour) inner.style.background = colour;
    add(node, add(make("div", "meter"), inner));
  }
  parent.append(node);
  return node;
}
export const tiles = (root) => { const node = make("section", "tiles"); node.setAttribute("aria-label", "Key numbers"); root.append(node); return node; };

/* A stacked bar: parts are [class, name, value]; it is as wide as `room` is to the sum of them. */
export function stackedBar(parts, format, { big = false, room = 0, open = false, least = big ? 0.06 : 0.09 } = {}) {
  const bar = make("div", "bar" + (big ? " big" : "") + (open ? " open" : "")), sum = parts.reduce((s, p) => s + Math.max(0, p[2]), 0) || 1, all = room || sum;
  const narrow = innerWidth <= 560 ? 2 : 1;
  for (const [name, title, value] of parts) {
    if (!(value > 0)) continue;
    const piece = make("span", name, value / all >= least * narrow ? percent(value / sum) : "");
    piece.style.width = 100 * value / all + "%";
    explain(piece, () => [title, [["amount", format(value)], ["share", percent(value / sum)]]]);
    bar.append(piece);
  }
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", parts.filter((p) => p[2] > 0).map((p) => p[1] + " " + percent(p[2] / sum)).join(", "));
  return bar;
}
/* The legend of colours: parts are [class, name, value]. */
export function legend(parts, format, total) {
  const list = make("ul", "key");
  for (const [name, title, value] of parts) {
    const item = add(make("li"), make("i", name), make("span", "", title));
    if (format) add(item, make("b", "", format(value)));
    if (total) add(item, make("span", "", percent(value / total)));
    list.append(item);
  }
  return list;
}

/* The tooltip. `content()` returns [title, [[name, value] …], note], or nothing. */
const tip = document.getElementById("tip");
export function hideTip() { tip.hidden = true; }
export function showTip(found, x, y) {
  if (!found) { hideTip(); return; }
  const [title, rows, note] = found, list = make("dl");
  for (const [name, value] of rows) add(list, make("dt", "", name), make("dd", "", value));
  tip.replaceChildren(make("b", "", title), list, ...(note ? [breakable(make("p"), note)] : []));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18) + "px";
}
/* Show a tooltip for `node`: under the pointer, at a tap, and when it has the focus. */
export function explain(node, content) {
  const at = (event) => showTip(content(event), event.clientX, event.clientY);
  node.addEventListener("pointermove", at);
  node.addEventListener("pointerdown", at);
  node.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hideTip(); });
  node.addEventListener("focus", (event) => { const box = node.getBoundingClientRect(); showTip(content(event), box.left + box.width / 2, box.bottom); });
  node.addEventListener("blur", hideTip);
}
addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

/* Colours of the style sheet, for canvases; `again` runs when light and dark change places. */
export function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }
export function onTheme(again) { matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again); }
/* Runs `act(width)` now and whenever the width of `node` changes. */
export function onWidth(node, act) {
  let seen = node.clientWidth;
  act(seen);
  new ResizeObserver(() => { if (node.clientWidth && node.clientWidth !== seen) { seen = node.clientWidth; act(seen); } }).observe(node);
}
export const isTouch = matchMedia("(pointer: coarse)").matches;

/* Copies text; works from a file as well, where browsers may have no clipboard. */
export async function copy(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* the older way */ }
  const area = make("textarea");
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
export function copyButton(text, label, title) {
  const node = button(label, async () => {
    node.textContent = await copy(typeof text === "function" ? text() : text) ? "Copied" : "Copy failed";
    setTimeout(() => { node.textContent = label; }, 1500);
  }, title);
  node.classList.add("copy");
  return node;
}
