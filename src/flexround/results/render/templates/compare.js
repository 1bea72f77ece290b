// Two methods side by side in every cell that both have.
const METHODS = [...new Set(data.compared.map(({ method }) => method))];
const compareForm = document.querySelector("#compare form");

// Cells of equal bits; full precision stands beside every number of bits. Runs that several tables show count once.
function pairs(one, other, number) {
  const of = (method) => data.compared.filter((each) => each.method === method && each[number] !== null);
  const place = ({ table, cell }) => `${table}\n${cell}`;
  const others = Map.groupBy(of(other), place);
  const found = of(one).flatMap((entry) => {
    const fits = ({ bits }) => bits === entry.bits || !bits || !entry.bits;
    return (others.get(place(entry)) ?? []).filter(fits).map((rival) => [entry, rival]);
  });
  const once = new Map();
  for (const pair of found) {
    const key = pair.map(({ run }) => run).join(" ");
    if (!once.has(key)) once.set(key, pair);
  }
  return [...once.values()];
}

// How much better the first cell is: in points, for perplexities in percent of the second; and the noise.
function lead([a, b], number) {
  const unit = a.relative ? 100 / b[number] : 1;
  const errors = [a, b].map(({ stderr }) => stderr ?? NaN);
  const noise = number === "value" ? data.z * unit * Math.hypot(...errors) : NaN;
  const value = Number((unit * a.better * (a[number] - b[number])).toFixed(data.decimals));
  return { a, b, value, noise, text: (value > 0 ? "+" : "") + value.toFixed(data.decimals) + (a.relative ? " %" : "") };
}

function sentence(found, one, other, number) {
  const count = (fits) => found.filter(fits).length;
  const beyond = (sign) => count(({ value, noise }) => sign * value > noise);
  return (
    `${found.length} cells have both: ${one} is better in ${count(({ value }) => value > 0)}, ${other} in ` +
    `${count(({ value }) => value < 0)}, equal are ${count(({ value }) => value === 0)}.` +
    (number === "value" ? ` By more than ${data.z} standard errors, unpaired: ${beyond(1)} and ${beyond(-1)}; paired tests of the claims see more.` : "")
  );
}

function compare(keep) {
  const { one, other, numbers } = Object.fromEntries(new FormData(compareForm));
  const number = numbers ?? "value";
  const found = pairs(one, other, number).map((pair) => lead(pair, number));
  const largest = Math.max(...found.map(({ value }) => Math.abs(value))) || 1;
  const rows = found.map(({ a, b, value, text }) => {
    const cell = [a.cell, a.bits || b.bits].filter(Boolean).join(", ");
    const difference = element("td", text);
    difference.className = `bar ${value < 0 ? "bad" : "good"}`;
    difference.style.setProperty("--share", `${Math.round((100 * Math.abs(value)) / largest)}%`);
    const written = ({ sheet }, words) => element("td", "", Object.assign(element("a", words), { href: `#cell-${sheet}` }));
    const [first, second] = [a, b].map((each) => each[number].toFixed(data.decimals));
    return element("tr", "", element("td", a.table), written(a, cell), element("td", first), written(b, second), difference);
  });
  const section = document.getElementById("compare");
  const table = section.querySelector("table");
  table.hidden = !found.length;
  table.tBodies[0].replaceChildren(...rows);
  delete table.order;
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((each) => (each.ariaSort = "none"));
  [headings[2], headings[3]].forEach((each, i) => (each.firstChild.textContent = [one, other][i]));
  section.querySelector("output").textContent = sentence(found, one, other, number);
  const asked = new URLSearchParams({ one, other, ...(numbers && { numbers }) });
  if (keep) history.replaceState(null, "", `#compare&${asked}`);
}

// Takes the choice of an address such as #compare&one=GPTQ&other=LRQ.
function compareAsked(fragment) {
  const asked = new URLSearchParams(fragment.replace(/^#compare&?/, ""));
  for (const [name, value] of asked) {
    const field = compareForm.elements[name];
    if (field && [...field.options].some((each) => each.value === value)) field.value = value;
  }
  compare(false);
  document.getElementById("compare").scrollIntoView();
}

function startCompare() {
  const { one, other } = compareForm.elements;
  if (METHODS.length < 2) return;
  for (const list of [one, other]) list.append(...METHODS.map((name) => new Option(name, name)));
  const count = (name) => data.compared.filter(({ method, value }) => method === name && value !== null).length;
  const largest = (word) => METHODS.filter((name) => name.includes(word)).sort((a, b) => count(b) - count(a))[0];
  one.value = largest("FlexRound") ?? METHODS[0];
  other.value = largest("AdaRound") ?? METHODS[1];
  compareForm.addEventListener("change", () => compare(true));
  compare(false);
}
