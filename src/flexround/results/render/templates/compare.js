// Two methods side by side in every cell that both have.
const METHODS = [...new Set(data.compared.map(({ method }) => method))];
const comparison = document.getElementById("compare");
const choices = comparison.querySelector("form");

// Cells of equal bits; full precision stands beside every number of bits. Runs that several tables show count once.
function pairs(one, other, number) {
  const [ones, others] = [one, other].map((method) =>
    data.compared.filter((each) => each.method === method && each[number] !== null),
  );
  const fits = (a, b) => a.table === b.table && a.cell === b.cell && (a.bits === b.bits || !a.bits || !b.bits);
  const found = ones.flatMap((a) => others.filter((b) => fits(a, b)).map((b) => [a, b]));
  const runs = found.map(([a, b]) => `${a.run} ${b.run}`);
  return found.filter((_, i) => runs.indexOf(runs[i]) === i);
}

// How much better the first cell is: in points, for perplexities in percent of the second; and the noise.
function lead([a, b], number) {
  const unit = a.relative ? 100 / b[number] : 1;
  const noise = number === "value" ? data.z * unit * Math.hypot(a.stderr ?? NaN, b.stderr ?? NaN) : NaN;
  const value = Number((unit * a.better * (a[number] - b[number])).toFixed(data.decimals));
  return { a, b, value, noise, text: (value > 0 ? "+" : "") + value.toFixed(data.decimals) + (a.relative ? " %" : "") };
}

function sentence(found, { one, other, numbers }) {
  const count = (fits) => found.filter(fits).length;
  const beyond = (sign) => count(({ value, noise }) => sign * value > noise);
  const noise =
    ` By more than ${data.z} standard errors, unpaired: ${beyond(1)} and ${beyond(-1)}; ` +
    "paired tests of the claims see more.";
  return (
    `${found.length} cells have both: ${one} is better in ${count(({ value }) => value > 0)}, ${other} in ` +
    `${count(({ value }) => value < 0)}, equal are ${count(({ value }) => value === 0)}.` +
    (numbers === "value" ? noise : "")
  );
}

function compare() {
  const chosen = Object.fromEntries(new FormData(choices));
  const { one, other, numbers } = chosen;
  const found = pairs(one, other, numbers).map((pair) => lead(pair, numbers));
  const largest = Math.max(...found.map(({ value }) => Math.abs(value))) || 1;
  const link = ({ sheet }, text) => Object.assign(element("a", text), { href: `#cell-${sheet}` });
  const rows = found.map(({ a, b, value, text }) => {
    const difference = element("td", text);
    difference.className = `bar ${value < 0 ? "bad" : "good"}`;
    difference.style.setProperty("--share", `${Math.round((100 * Math.abs(value)) / largest)}%`);
    const [first, second] = [a, b].map((each) => each[numbers].toFixed(data.decimals));
    const cell = link(a, [a.cell, a.bits || b.bits].filter(Boolean).join(", "));
    const parts = [a.table, cell, first, link(b, second)].map((part) => element("td", "", part));
    return element("tr", "", ...parts, difference);
  });
  const table = comparison.querySelector("table");
  const headings = [...table.tHead.rows[0].cells];
  table.hidden = !found.length;
  table.tBodies[0].replaceChildren(...rows);
  delete table.order; // of rows that were sorted
  headings.forEach((each) => (each.ariaSort = "none"));
  headings.slice(2, 4).forEach((each, i) => (each.firstChild.textContent = [one, other][i]));
  comparison.querySelector("output").textContent = sentence(found, chosen);
}

// Takes the choice of an address such as #compare&one=GPTQ&other=LRQ.
function compareAsked(fragment) {
  for (const [name, value] of new URLSearchParams(fragment.replace("#compare&", ""))) {
    const option = [...(choices.elements[name]?.options ?? [])].find((each) => each.value === value);
    if (option) option.selected = true;
  }
  compare();
  comparison.scrollIntoView();
}

function startCompare() {
  const { one, other } = choices.elements;
  for (const list of [one, other]) list.append(...METHODS.map((name) => new Option(name, name)));
  const count = (name) => data.compared.filter(({ method, value }) => method === name && value !== null).length;
  const largest = (word) => METHODS.filter((name) => name.includes(word)).sort((a, b) => count(b) - count(a))[0];
  one.value = largest("FlexRound") ?? METHODS[0];
  other.value = largest("AdaRound") ?? METHODS[1];
  choices.addEventListener("change", () => {
    compare();
    history.replaceState(null, "", `#compare&${new URLSearchParams(new FormData(choices))}`);
  });
  compare();
}
if (METHODS.length > 1) startCompare();
