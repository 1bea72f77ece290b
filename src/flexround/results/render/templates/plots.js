// Colours and marks that can be told apart on white and on black; text and lines of plots follow the style sheet.
const COLOURS = ["#3987d6", "#d9622b", "#1a9e77", "#c46fa3", "#c08a00", "#4aa8c9", "#8f6bd1", "#8a8f99"];
const MARKS = ["circle", "triangle-down", "square", "diamond", "cross", "triangle-up", "star", "x-thin-open"];
const QUIET = { gridcolor: "#8885", zerolinecolor: "#8889", automargin: true, fixedrange: false };

function styled({ look = 0, dash = "solid", ...trace }) {
  const color = COLOURS[look % COLOURS.length];
  const marker = { color, size: 7, symbol: MARKS[look % MARKS.length], line: { color, width: 1.5 } };
  const bar = (error) => error && { ...error, type: "data", color, thickness: 1, width: 3 };
  const hover = { hoverinfo: "text", hoverlabel: { bgcolor: "#1c2330", bordercolor: color, font: { color: "#fff" } } };
  const bars = { error_x: bar(trace.error_x), error_y: bar(trace.error_y) };
  return { type: "scatter", ...trace, ...hover, ...bars, marker, line: { color, dash, width: 1.5 } };
}

function layoutOf(choice, narrow) {
  const { xaxis = {}, yaxis = {}, shapes = [], ...rest } = choice.layout;
  const band = { fillcolor: "#8883", line: { width: 0 }, layer: "below" };
  return {
    margin: { l: 8, r: 8, t: 30, b: 8 },
    font: { size: narrow ? 10 : 12 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
    modebar: { bgcolor: "transparent", color: "#8a8f99", activecolor: "#3987d6" },
    hovermode: "closest",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    ...rest,
    height: (rest.height ?? 380) + (narrow ? 16 * choice.lines : 0), // the legend stands on as many lines there
    shapes: shapes.map((shape) => ({ ...shape, ...band })),
    xaxis: { ...QUIET, ...xaxis },
    yaxis: { ...QUIET, ...yaxis },
  };
}

const BUTTONS = [["zoom2d", "pan2d", "resetScale2d", "toImage"]];

function render(node, { traces, ...choice }) {
  const narrow = node.clientWidth < 500;
  const config = { responsive: true, displaylogo: false, modeBarButtons: BUTTONS, displayModeBar: narrow ? false : "hover" };
  Plotly.react(node, traces.map(styled), layoutOf({ ...choice, lines: traces.length }, narrow), config);
  node.removeAllListeners("plotly_click"); // of the choice before
  node.on("plotly_click", ({ points: [point] }) => point.customdata && open(point.customdata));
}

// Draws one choice into a box of the page, with its numbers as a table below.
function draw(box, choice, name) {
  const node = box.querySelector(".plot");
  render(node, choice);
  node.setAttribute("aria-label", `${name}, ${choice.label}. Its numbers follow as a table.`);
  const table = shown(choice.numbers);
  box.querySelector(".numbers").replaceChildren(table);
  const rows = table.querySelectorAll("tbody tr");
  (choice.sheets ?? []).forEach((ids, i) => ids.forEach((id, j) => id && linked(rows[i].cells[j], id)));
}

// What a click on a point does is done from the keyboard here.
function linked(cell, id) {
  const link = element("a", cell.textContent);
  link.href = `#cell-${id}`;
  cell.replaceChildren(link);
}

function plotBox() {
  const plot = element("div");
  plot.className = "plot";
  plot.setAttribute("role", "img");
  const numbers = element("div");
  numbers.className = "numbers";
  return element("div", "", plot, element("details", "", element("summary", "The numbers"), numbers));
}

// The errors of a run's blocks, from the rows that its sheet shows.
function blocks([header, ...rows], label) {
  const at = (title) => header.indexOf(title);
  const names = rows.map((row) => row[at("block")] + (row[at("phase")] === "weights" ? "" : `, ${row[at("phase")]}`));
  const differs = (row) => Math.abs(row[at("error, soft")] / row[at("error, hard")] - 1) > 0.01; // if weights were soft
  const kinds = ["error, nearest", "error, soft", "error, hard"].filter((kind) =>
    rows.some((row) => row[at(kind)] > 0 && (kind !== "error, soft" || differs(row))),
  );
  const traces = kinds.map((kind, look) => {
    const own = rows.map((row, i) => [names[i], row[at(kind)]]).filter(([, value]) => value > 0);
    const text = own.map(([block, value]) => `${block}, ${kind.slice(7)}: ${value}`);
    const [x, y] = [own.map(([block]) => block), own.map(([, value]) => value)];
    return { name: kind.slice(7), look: [7, 0, 1][look], mode: "lines+markers", x, y, text };
  });
  const layout = { xaxis: { type: "category" }, yaxis: { type: "log", exponentformat: "e", title: { text: "error of the block" } } };
  const numbers = [["block", ...kinds], ...rows.map((row, i) => [names[i], ...kinds.map((kind) => row[at(kind)])])];
  return { label, traces, layout, numbers };
}

// The plot of a sheet, once it is seen: what is hidden has no width.
function drawBlocks(node) {
  if (!node.closest("details").open || node.classList.contains("js-plotly-plot")) return;
  render(node, node.plotted);
}

function blocksOf(sections) {
  const found = sections.find(([title]) => title === "Blocks");
  return found && data.sections[found[1]];
}

function blockChoices() {
  const recorded = data.runs.filter(([, sections]) => blocksOf(sections));
  return recorded.map(([name, sections]) => {
    const [, task, checkpoint, recipe, seed] = name.split("/");
    const label = `${checkpoint}: ${recipe}${seed === "seed0" ? "" : `, ${seed}`}`;
    return { label, group: `${checkpoint}, ${task}`, make: () => blocks(blocksOf(sections), name) };
  });
}

function option(label, value) {
  const node = element("option", label);
  node.value = value;
  return node;
}

// Fills a section of the page: a list of choices, if there are several, and the plot of the chosen one.
function fill(section, choices) {
  const name = section.querySelector("h2, h3").textContent;
  const list = section.querySelector("select");
  const box = section.querySelector(".plot-box").appendChild(plotBox());
  const show = () => {
    const choice = choices[Number(list.value)];
    draw(box, choice.make ? choice.make() : choice, name);
  };
  const groups = new Map();
  choices.forEach(({ label, group }, i) => {
    if (group && !groups.has(group)) {
      const node = element("optgroup");
      node.label = group;
      groups.set(group, node);
      list.append(node);
    }
    (groups.get(group) ?? list).append(option(label, i));
  });
  list.closest("label").hidden = choices.length < 2;
  list.value = Math.max(0, choices.findIndex(({ group, label }) => group && label.includes("flexround")));
  list.addEventListener("change", show);
  show();
}

// Without choices a section is a closed line that says why.
function plotSections() {
  const made = { ...data.plots, blocks: blockChoices() };
  for (const [name, choices] of Object.entries(made)) {
    const section = document.getElementById(`plot-${name}`);
    const empty = section.querySelector(".empty");
    empty.hidden = choices.length > 0;
    section.querySelector(".filled").hidden = !choices.length; // before it is drawn: what is hidden has no width
    if (choices.length) fill(section, choices);
  }
}

// Paper has no dark theme and another width; what is folded away is opened on it.
addEventListener("beforeprint", () => {
  for (const node of document.querySelectorAll("main details:not([open])")) {
    node.open = true;
    node.dataset.printed = "";
  }
  for (const node of document.querySelectorAll(".plot.js-plotly-plot")) Plotly.relayout(node, { width: 660 });
});
addEventListener("afterprint", () => {
  for (const node of document.querySelectorAll("[data-printed]")) {
    node.open = false;
    delete node.dataset.printed;
  }
  for (const node of document.querySelectorAll(".plot.js-plotly-plot")) Plotly.relayout(node, { width: null, autosize: true });
});
