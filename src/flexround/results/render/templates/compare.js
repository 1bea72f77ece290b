// Two methods in every cell in which a claim compares them: paired differences.
const comparison = document.getElementById("compare");
const chosen = comparison.querySelector("select");

function compare() {
  const found = data.compared.filter(([pair]) => pair === chosen.value);
  const rows = found.map(([, sheet, place, cell, ...rest]) => {
    const link = sheet ? Object.assign(element("a", cell), { href: `#cell-${sheet}` }) : element("span", cell);
    return element("tr", "", element("td", place), element("td", "", link), ...rest.map((text) => element("td", text)));
  });
  const table = comparison.querySelector("table");
  table.hidden = !rows.length;
  table.tBodies[0].replaceChildren(...rows);
  delete table.order; // of rows that were sorted
  for (const each of table.tHead.rows[0].cells) each.ariaSort = "none";
  const counts = {};
  for (const outcome of found.map((row) => row.at(-1).split(/[ ,]/)[0])) counts[outcome] = (counts[outcome] ?? 0) + 1;
  const words = Object.entries(counts).map(([outcome, count]) => `${outcome} in ${count}`);
  comparison.querySelector("output").textContent = `${found.length} comparisons; the first one is ${words.join(", ")}.`;
}

// Takes the choice of an address such as #compare&pair=B + FlexRound / B + AdaRound.
function compareAsked(fragment) {
  chosen.value = new URLSearchParams(fragment.replace("#compare&", "")).get("pair");
  compare();
  comparison.scrollIntoView();
}

chosen.append(...[...new Set(data.compared.map(([pair]) => pair))].map((name) => new Option(name, name)));
chosen.addEventListener("change", () => {
  compare();
  history.replaceState(null, "", `#compare&${new URLSearchParams({ pair: chosen.value })}`);
});
if (chosen.value) compare();
