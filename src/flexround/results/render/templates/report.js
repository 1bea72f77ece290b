"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dialog = document.getElementById("provenance");

function element(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

// What a cell of a table is, then its runs; sections of these are HTML that was escaped when it was made.
function describe(values, runs) {
  const facts = element("dl");
  data.columns.forEach(([key, words], i) => {
    if (values[i] === "") return;
    const term = element("dt", words);
    term.title = key;
    facts.append(term, element("dd", values[i]));
  });
  const parts = runs.map((number, i) => {
    const [name, sections] = data.runs[number];
    const part = element("details", "", element("summary", name));
    part.open = i === 0;
    for (const [title, section] of sections) {
      part.append(element("h3", title));
      part.insertAdjacentHTML("beforeend", data.sections[section]);
    }
    return part;
  });
  return [facts, ...parts];
}

function open(id) {
  const cell = data.cells[id];
  if (!cell) return;
  const [title, values, runs] = cell;
  document.getElementById("provenance-title").textContent = title;
  document.getElementById("provenance-body").replaceChildren(...describe(values, runs));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  history.replaceState(null, "", `#cell-${id}`);
}

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

// One stop of the Tab key in each table; arrow keys move between its cells.
function move(button, key) {
  const lines = [...button.closest("table").querySelectorAll("tbody tr")];
  const rows = lines.map((line) => [...line.querySelectorAll(".cell")]);
  const y = rows.findIndex((row) => row.includes(button));
  const x = rows[y].indexOf(button);
  const [dy, dx] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
  const row = rows[y + dy];
  const target = row?.[dy ? Math.min(x, row.length - 1) : x + dx];
  if (!target) return;
  button.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function filter(family) {
  const nodes = [...document.querySelectorAll("[data-family]")];
  for (const node of nodes) node.hidden = family !== "everything" && node.dataset.family !== family;
  const count = nodes.filter((node) => !node.hidden && node.matches("#status tr")).length;
  document.querySelector("#filter output").textContent = `${count} tables shown`;
}

document.addEventListener("click", ({ target }) => {
  if (target.matches(".sort")) sort(target);
  if (target.matches(".cell")) open(target.id.slice("cell-".length));
  if (target === dialog) dialog.close(); // its backdrop
});
document.addEventListener("keydown", (event) => {
  if (!event.key.startsWith("Arrow") || !event.target.matches(".cell")) return;
  event.preventDefault();
  move(event.target, event.key);
});
document.getElementById("filter").addEventListener("change", ({ target }) => filter(target.value));
document.addEventListener("change", ({ target }) => {
  if (!target.matches(".choice")) return;
  const pictures = target.closest("section").querySelectorAll(":scope > .picture");
  pictures.forEach((each, i) => (each.hidden = i !== Number(target.value)));
});
dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
for (const table of document.querySelectorAll(".values")) {
  [...table.querySelectorAll(".cell")].slice(1).forEach((button) => (button.tabIndex = -1));
}

// What an address asks for: a cell's sheet, or two methods.
function route() {
  if (location.hash.startsWith("#cell-")) open(location.hash.slice("#cell-".length));
  if (location.hash.startsWith("#compare&")) compareAsked(location.hash);
}

addEventListener("hashchange", route);
