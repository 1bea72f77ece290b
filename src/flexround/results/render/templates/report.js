"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dialog = document.getElementById("provenance");

function element(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

// Facts as Python wrote them: an object, rows of which the first is the header, lines of text, or one value.
function shown(facts) {
  if (Array.isArray(facts) && Array.isArray(facts[0])) {
    const [header, ...rows] = facts;
    const line = (tag, cells) => element("tr", "", ...cells.map((cell) => element(tag, String(cell ?? ""))));
    const body = element("tbody", "", ...rows.map((row) => line("td", row)));
    const table = element("table", "", element("thead", "", line("th", header)), body);
    const box = element("div", "", table);
    box.className = "scroll";
    box.tabIndex = 0;
    return box;
  }
  if (facts !== null && typeof facts === "object") {
    const list = element("dl");
    for (const [key, value] of Object.entries(facts)) list.append(element("dt", key), element("dd", "", shown(value)));
    return list;
  }
  return element(String(facts).includes("\n") ? "pre" : "span", String(facts));
}

const NAMES = ["section", "method", "bits", "column", "metric"]; // of a cell: they stand in the title
const LAYOUT = ["table", "row", "group", "best"];

function describe([values, runs]) {
  const named = data.columns.map((name, i) => [name, values[i]]);
  const facts = Object.fromEntries(named.filter(([, value]) => value !== ""));
  const parts = runs.map((number, i) => {
    const [name, sections] = data.runs[number];
    const part = element("details", "", element("summary", name));
    part.open = i === 0;
    for (const [title, section] of sections) part.append(element("h3", title), shown(data.sections[section]));
    return part;
  });
  const rest = Object.entries(facts).filter(([name]) => ![...NAMES, ...LAYOUT].includes(name));
  const words = rest.map(([name, value]) => [name.replaceAll("_", " "), value]);
  return [facts, [shown(Object.fromEntries(words)), ...parts]];
}

function open(id) {
  const [table, index] = id.split(".");
  const cell = data.cells[table]?.[index];
  if (!cell) return;
  const [facts, parts] = describe(cell);
  const names = NAMES.map((name) => facts[name]).filter(Boolean);
  document.getElementById("provenance-title").textContent = `Table ${table}: ${names.join(", ")}`;
  document.getElementById("provenance-body").replaceChildren(...parts);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  history.replaceState(null, "", `#cell-${id}`);
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
  const key = (row) => row.querySelector(`[data-column="${header.dataset.column}"]`)?.dataset.value ?? "";
  const sign = direction === "ascending" ? 1 : -1;
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what has no value stands last either way
    return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  };
  const rows = table.order.flatMap(([, own]) => own);
  table.tBodies[0].append(...rows.sort((one, other) => compare(key(one), key(other))));
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
  const wanted = (node) => family === "All" || node.dataset.family === family;
  const nodes = [...document.querySelectorAll("[data-family]")];
  for (const node of nodes) node.hidden = !wanted(node);
  const count = nodes.filter((node) => wanted(node) && node.matches("#status tr")).length;
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
dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
for (const table of document.querySelectorAll(".values")) {
  [...table.querySelectorAll(".cell")].slice(1).forEach((button) => (button.tabIndex = -1));
}
if (location.hash.startsWith("#cell-")) open(location.hash.slice("#cell-".length));
