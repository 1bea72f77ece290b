"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dialog = document.getElementById("provenance");

function element(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

function inWords(key) {
  return data.words[key] ?? key.replaceAll("_", " ");
}

function heading(titles) {
  const cells = titles.map((title, i) => {
    const button = element("button", title);
    button.type = "button";
    button.className = "sort";
    const cell = element("th", "", button);
    cell.scope = "col";
    cell.dataset.column = i;
    cell.ariaSort = "none";
    return cell;
  });
  return element("thead", "", element("tr", "", ...cells));
}

// A setting may have a value for each group of a rounding.
function inLine(value) {
  if (value === null || typeof value !== "object") return String(value ?? "");
  return Object.entries(value).map(([key, each]) => `${key}: ${inLine(each)}`).join(", ");
}

// A bar behind a number; the longest fills its cell.
function barred(cell, share, kind) {
  cell.classList.add("bar", kind);
  cell.style.setProperty("--share", `${Math.round(100 * Math.abs(share))}%`);
  return cell;
}

function row(values) {
  const cells = values.map((value, i) => {
    const cell = element("td", inLine(value));
    cell.dataset.column = i;
    cell.dataset.value = parseFloat(value) || inLine(value);
    return cell;
  });
  return element("tr", "", ...cells);
}

// What a key means, with the key itself where it is pointed at.
function named(key) {
  const term = element("dt", inWords(key));
  term.title = key;
  return term;
}

// Facts as Python wrote them: an object, rows of which the first is the header, lines of text, or one value.
function shown(facts) {
  if (Array.isArray(facts) && Array.isArray(facts[0])) {
    const [header, ...rows] = facts;
    const table = element("table", "", heading(header), element("tbody", "", ...rows.map(row)));
    table.className = "sortable";
    const box = element("div", "", table);
    box.className = "scroll";
    box.tabIndex = 0;
    return box;
  }
  if (facts !== null && typeof facts === "object") {
    const list = element("dl");
    for (const [key, value] of Object.entries(facts)) list.append(named(key), element("dd", "", shown(value)));
    return list;
  }
  return element(String(facts).includes("\n") ? "pre" : "span", String(facts));
}

const NAMES = ["section", "method", "bits", "column", "metric"]; // of a cell: they stand in the title
const LAYOUT = ["table", "row", "group", "best"];

// A section of a run: its settings with words before the keys, its blocks with bars.
function described(title, facts) {
  if (title.startsWith("Settings")) {
    const [header, ...rows] = facts;
    return [shown([["what", ...header], ...rows.map(([key, ...rest]) => [inWords(key), key, ...rest])])];
  }
  const node = shown(facts);
  if (title === "Blocks") compareErrors(facts, node);
  return [node];
}

// The errors of blocks, of round-to-nearest and after learning, as parts of the largest.
function compareErrors([header, ...rows], node) {
  const columns = header.flatMap((name, i) => (name.startsWith("error") ? [i] : []));
  const largest = Math.max(...rows.flatMap((each) => columns.map((i) => each[i] ?? 0)));
  [...node.querySelectorAll("tbody tr")].forEach(({ cells }, y) => {
    for (const i of columns) if (rows[y][i]) barred(cells[i], rows[y][i] / largest, "plain");
  });
}

function describe([values, runs]) {
  const fields = data.columns.map((name, i) => [name, values[i]]);
  const facts = Object.fromEntries(fields.filter(([, value]) => value !== ""));
  if (facts.higher_is_better) facts.higher_is_better = facts.higher_is_better === "1" ? "yes" : "no";
  const parts = runs.map((number, i) => {
    const [name, sections] = data.runs[number];
    const part = element("details", "", element("summary", name));
    part.open = i === 0;
    for (const [title, section] of sections) part.append(element("h3", title), ...described(title, data.sections[section]));
    return part;
  });
  const rest = Object.entries(facts).filter(([name]) => ![...NAMES, ...LAYOUT].includes(name));
  return [facts, [shown(Object.fromEntries(rest)), ...parts]];
}

function open(id) {
  const [table, index] = id.split(".");
  const cell = data.cells[table]?.[index];
  if (!cell) return;
  const [facts, parts] = describe(cell);
  const names = NAMES.filter((name) => facts[name]).map((name) => (name === "metric" ? inWords(facts[name]) : facts[name]));
  document.getElementById("provenance-title").textContent = `${data.places[table]}: ${names.join(", ")}`;
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
