/* Tables that sort, filter, and say when there is more to the side. */
import { add, make } from "./base.js";

/* Puts `node` into a box that scrolls sideways; a line says so where it does not fit. */
export function scroller(node, label) {
  const box = add(make("div", "scroll"), node), hint = make("p", "more", "Swipe or scroll sideways for more columns →"), outer = add(make("div"), hint, box);
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  const check = () => { hint.hidden = box.scrollWidth <= box.clientWidth + 2; };
  new ResizeObserver(check).observe(box);
  box.addEventListener("scroll", () => { hint.classList.toggle("seen", box.scrollLeft > 12); }, { passive: true });
  check();
  return outer;
}

/* A table of `rows`. A column is { name, value(row), text(row), cell(row), right, better, bar }:
   `value` sorts, `text` or `cell` (an element) shows, `better` is "low" or "high" where the best is marked. */
export function table(rows, columns, { label, sortable = true, rowName, onRow } = {}) {
  const node = make("table"), head = make("thead"), body = make("tbody"), state = { column: null, down: false, filter: () => true };
  const best = columns.map((c) => bestOf(rows, c));
  const drawn = () => {
    const shown = rows.filter(state.filter);
    if (state.column) shown.sort(by(state.column, state.down));
    body.replaceChildren(...shown.map((row) => rowOf(row, columns, best, rowName, onRow)));
    return shown;
  };
  const heads = columns.map((column) => heading(column, sortable && column.value ? () => {
    state.down = state.column === column ? !state.down : column.better === "high";
    state.column = column;
    heads.forEach((th, n) => th.setAttribute("aria-sort", columns[n] !== column ? "none" : state.down ? "descending" : "ascending"));
    drawn();
  } : null));
  add(node, add(head, add(make("tr"), ...heads)), body);
  drawn();
  const outer = scroller(node, label);
  return { element: outer, redraw: drawn, filter(test) { state.filter = test; return drawn(); } };
}

function heading(column, act) {
  const th = make("th", [column.right ? "n" : "", column.className || ""].join(" ").trim());
  th.scope = "col";
  if (!act) { th.textContent = column.name; return th; }
  th.setAttribute("aria-sort", "none");
  const press = make("button", "sort", column.name);
  press.type = "button";
  press.title = "Sort by " + (column.title || column.name).toLowerCase();
  press.addEventListener("click", act);
  return add(th, press);
}
function by(column, down) {
  const sign = down ? -1 : 1;
  return (a, b) => {
    const [u, v] = [column.value(a), column.value(b)];
    if (u === v) return 0;
    if (u === null || u === undefined) return 1;
    if (v === null || v === undefined) return -1;
    return (typeof u === "string" ? u.localeCompare(v, "en", { numeric: true }) : u - v) * sign;
  };
}
/* The text of the best value of a column; nothing where all rows read the same. */
function bestOf(rows, column) {
  if (!column.better || rows.length < 2) return null;
  const texts = new Set(rows.map(column.text));
  if (texts.size < 2) return null;
  const ranked = rows.filter((r) => column.value(r) !== null).sort(by(column, column.better === "high"));
  return ranked.length ? column.text(ranked[0]) : null;
}
function rowOf(row, columns, best, rowName, onRow) {
  const tr = make("tr", rowName ? rowName(row) : "");
  columns.forEach((column, n) => {
    const td = make("td", (column.right ? "n" : "") + (best[n] !== null && column.text && column.text(row) === best[n] ? " best" : "") + (column.className ? " " + column.className : ""));
    if (column.cell) add(td, column.cell(row)); else td.textContent = column.text(row);
    tr.append(td);
  });
  if (onRow) onRow(tr, row);
  return tr;
}
