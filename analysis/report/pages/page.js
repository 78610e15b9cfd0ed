"use strict";
// The page reads without this script: it only adds sorting and filtering to tables, and life to the first figure.
const words = document.body.dataset;

function make(tag, text, properties) {
  const made = Object.assign(document.createElement(tag), properties || {});
  made.textContent = text; // never markup: names come from anybody's rows
  return made;
}

// Tables: a button in each heading sorts, a field above filters rows by what they contain.
function number(text) {
  const found = /^[+-]?[\d,]*\.?\d+(e[+-]?\d+)?/i.exec(text.trim().replace("−", "-"));
  return text.trim() === "∞" ? Infinity : found ? parseFloat(found[0].replace(/,/g, "")) : NaN;
}

function sort(table, column, button) {
  const head = button.closest("th");
  const up = head.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("th").forEach((th) => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.cells[column].textContent]);
  const isText = head.classList.contains("text");
  const compare = (a, b) => {
    if (isText) return (up ? 1 : -1) * a[1].localeCompare(b[1], undefined, { numeric: true });
    const [x, y] = [number(a[1]), number(b[1])];
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y); // what is no number comes last, either way
    return x === y ? 0 : (up ? 1 : -1) * (x < y ? -1 : 1);
  };
  table.tBodies[0].append(...rows.sort(compare).map((pair) => pair[0]));
}

function filter(table, text, count) {
  const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const own = row.textContent.toLowerCase();
    row.hidden = !parts.every((part) => own.includes(part));
    shown += !row.hidden;
  }
  count.textContent = parts.length ? `${shown} / ${table.tBodies[0].rows.length}` : "";
}

for (const table of document.querySelectorAll("div.wide > table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = make("button", head.textContent, { type: "button" });
    button.addEventListener("click", () => sort(table, column, button));
    head.replaceChildren(button);
  });
  if (table.tBodies[0].rows.length > 5) {
    const field = make("input", "", { type: "search", placeholder: words.filter });
    field.setAttribute("aria-label", words.filter);
    const count = make("span", "");
    count.setAttribute("aria-live", "polite");
    field.addEventListener("input", () => filter(table, field.value, count));
    const line = make("p", "", { className: "filter" });
    line.append(field, count);
    table.parentElement.before(line);
  }
}

// The first figure: pointing at a mark, or reaching it with Tab, tells the arm; a click leaves its method alone.
for (const figure of document.querySelectorAll("figure.front")) {
  const tip = make("div", "", { className: "tip", hidden: true });
  tip.setAttribute("role", "status");
  figure.append(tip);
  const arms = [...figure.querySelectorAll("g.arm")];
  arms.forEach((arm) => arm.querySelector("title").remove()); // the tip says the same, at once
  const buttons = new Map();
  const tell = (arm) => {
    tip.replaceChildren(...arm.getAttribute("aria-label").split("; ").map((part) => make("div", part)));
    tip.hidden = false;
    const [box, mark] = [figure.getBoundingClientRect(), arm.lastElementChild.getBoundingClientRect()];
    const left = Math.min(mark.left - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${mark.bottom - box.top + 8}px`;
  };
  const choose = (family) => {
    const only = family && buttons.get(family).getAttribute("aria-pressed") !== "true" ? family : null;
    buttons.forEach((button, name) => button.setAttribute("aria-pressed", String(name === only)));
    arms.forEach((arm) => arm.classList.toggle("off", only !== null && arm.dataset.family !== only));
  };
  const row = figure.querySelector(".families");
  for (const family of new Set(arms.map((arm) => arm.dataset.family))) {
    const button = make("button", family, { type: "button" });
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(family));
    buttons.set(family, button);
    row.append(button);
  }
  row.hidden = false;
  for (const arm of arms) {
    for (const event of ["pointerenter", "focus"]) arm.addEventListener(event, () => tell(arm));
    for (const event of ["pointerleave", "blur"]) arm.addEventListener(event, () => (tip.hidden = true));
    arm.addEventListener("click", () => choose(arm.dataset.family));
    arm.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose(arm.dataset.family);
      } else if (event.key === "Escape") tip.hidden = true;
    });
  }
}
