"use strict";

// What a row is sorted by: a number, which may have a unit, or a text.
function sortedBy(row, column) {
  const cell = row.querySelector(`[data-column="${column}"]`) ?? row.cells[column];
  const text = cell?.dataset.value ?? cell?.textContent ?? "";
  return /^[+-]?[\d.]+(e[+-]?\d+)?( %)?$/.test(text) ? parseFloat(text) : text;
}

// Up, down, then the order of the paper with its rules between groups of rows.
function sort(button) {
  const header = button.closest("th");
  const table = header.closest("table");
  table.order ??= [...table.tBodies].map((body) => [body, [...body.rows]]);
  const direction = { none: "ascending", ascending: "descending", descending: "none" }[header.ariaSort];
  for (const other of table.querySelectorAll("thead th[aria-sort]")) other.ariaSort = "none";
  header.ariaSort = direction;
  if (direction === "none") {
    for (const [body, rows] of table.order) body.append(...rows);
    return;
  }
  const sign = direction === "ascending" ? 1 : -1;
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what has no value stands last either way
    return sign * (isNaN(a) || isNaN(b) ? String(a).localeCompare(b, "en", { numeric: true }) : a - b);
  };
  const rows = table.order.flatMap(([, own]) => own);
  const { column } = header.dataset;
  table.tBodies[0].append(...rows.sort((one, other) => compare(sortedBy(one, column), sortedBy(other, column))));
}

function filter(family) {
  const nodes = [...document.querySelectorAll("[data-family]")];
  for (const node of nodes) node.hidden = family !== "everything" && node.dataset.family !== family;
  const count = nodes.filter((node) => !node.hidden && node.matches("#status tr")).length;
  document.querySelector("#filter output").textContent = `${count} tables shown`;
}

// Unfolds what an address names, such as the sheet of a cell.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  for (let each = target?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  target?.scrollIntoView({ block: target.matches(".cell") ? "center" : "start" });
}

document.addEventListener("click", ({ target }) => {
  if (target.matches(".sort")) sort(target);
  if (target.hash === location.hash) reveal(); // a sheet that was folded again
});
document.getElementById("filter").addEventListener("change", ({ target }) => filter(target.value));
document.addEventListener("change", ({ target }) => {
  if (!target.matches(".choice")) return;
  const pictures = target.closest("section").querySelectorAll(":scope > .picture");
  pictures.forEach((each, i) => (each.hidden = i !== Number(target.value)));
});
addEventListener("hashchange", reveal);
reveal();
