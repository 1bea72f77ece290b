// Two methods side by side in every cell that both have.
const COLUMN = Object.fromEntries(data.columns.map((name, i) => [name, i]));

// The paper writes both "Q + FlexRound" and "Q+FlexRound".
function spelt(values) {
  return values[COLUMN.method].replace(/\s*\+\s*/g, " + ");
}

function entries() {
  return Object.entries(data.cells).flatMap(([table, cells]) =>
    cells
      .map(([values], i) => ({ id: `${table}.${i}`, of: (name) => values[COLUMN[name]], method: spelt(values) }))
      .filter(({ of, method }) => of("metric") !== "value" && method),
  );
}

const ENTRIES = entries();
const METHODS = [...new Set(ENTRIES.map(({ method }) => method))];
const isWhole = ({ of }) => data.whole.includes(of("recipe"));
const FACTS = ["task", "checkpoint", "recipe", "metric"]; // of a run; several tables may show it
const place = ({ id, of }) => [id.split(".")[0], of("section"), of("column"), of("metric")].join("\n");

// Cells of equal bits; full precision stands beside every number of bits. Runs that several tables show count once.
function pairs(one, other, number) {
  const others = Map.groupBy(
    ENTRIES.filter((entry) => entry.method === other && entry.of(number)),
    place,
  );
  const found = ENTRIES.filter((entry) => entry.method === one && entry.of(number)).flatMap((entry) => {
    const fits = (rival) => rival.of("bits") === entry.of("bits") || isWhole(rival) || isWhole(entry);
    return (others.get(place(entry)) ?? []).filter(fits).map((rival) => [entry, rival]);
  });
  const once = new Map();
  for (const pair of found) {
    const key = pair.map(({ of }) => FACTS.map(of).join("/")).join(" ");
    if (!once.has(key)) once.set(key, pair);
  }
  return [...once.values()];
}

// How much better the first cell is: in points, for perplexities in percent of the second; and the noise.
function lead([one, other], number) {
  const [a, b] = [Number(one.of(number)), Number(other.of(number))];
  const metric = one.of("metric");
  const relative = data.relative.includes(metric.replace(/_\d+$/, ""));
  const unit = relative ? 100 / b : 1;
  const lower = relative || one.of("higher_is_better") === "0";
  const value = unit * (lower ? b - a : a - b);
  const errors = [one, other].map((entry) => Number(entry.of("stderr") || NaN));
  const noise = number === "value" ? data.z * unit * Math.hypot(...errors) : NaN;
  return { value: Number(value.toFixed(data.decimals)), noise, relative };
}

function signed(value) {
  return (value > 0 ? "+" : "") + value.toFixed(data.decimals);
}

function comparison(one, other, number) {
  const found = pairs(one, other, number).map((pair) => ({ pair, ...lead(pair, number) }));
  const where = ([a, b]) => [a.of("section"), a.of("column"), inWords(a.of("metric")), (isWhole(a) ? b : a).of("bits")];
  const named = (pair) => where(pair).filter(Boolean).join(", ");
  const table = ([a]) => data.places[a.id.split(".")[0]];
  const shade = ({ value }) => (value > 0 ? "first better" : value < 0 ? "second better" : "equal");
  const looks = { "first better": 2, "second better": 1, equal: 7 };
  const tables = [...new Set(found.map(({ pair }) => table(pair)))];
  const count = (kind) => found.filter((each) => shade(each) === kind).length;
  const beyond = (sign) => found.filter(({ value, noise }) => sign * value > noise).length;
  const traces = Object.entries(looks)
    .map(([kind, look]) => {
      const own = found.map((each, i) => [each, i]).filter(([each]) => shade(each) === kind);
      const y = own.map(([{ pair }, i]) => tables.indexOf(table(pair)) + 0.5 * (((i * 0.618) % 1) - 0.5));
      const text = own.map(([{ pair, value }]) => `${table(pair)}, ${named(pair)}: ${signed(value)}`);
      const [x, customdata] = [own.map(([{ value }]) => value), own.map(([{ pair }]) => pair[0].id)];
      return { name: `${kind} (${own.length})`, look, mode: "markers", x, y, text, customdata };
    })
    .filter(({ x }) => x.length);
  const axis = { tickvals: tables.map((_, i) => i), ticktext: tables, range: [tables.length - 0.4, -0.6] };
  const xaxis = { title: { text: "difference, in points or percent" } };
  const header = ["table", "cell", "first", "second", "difference"];
  const rows = found.map(({ pair, value, relative }) => {
    const [a, b] = pair;
    return [table(pair), named(pair), a.of(number), b.of(number), signed(value) + (relative ? " %" : "")];
  });
  const sentence =
    `${found.length} cells have both: ${one} is better in ${count("first better")}, ${other} in ` +
    `${count("second better")}, equal are ${count("equal")}.` +
    (number === "value" ? ` By more than ${data.z} standard errors, unpaired: ${beyond(1)} and ${beyond(-1)}; paired tests of the claims see more.` : "");
  const layout = { height: 130 + 24 * tables.length, xaxis, yaxis: axis };
  const sheets = found.map(({ pair }) => [pair[0].id]);
  return { label: `${one} against ${other}`, traces, layout, numbers: [header, ...rows], sentence, sheets };
}

const compareForm = document.querySelector("#compare form");

function compare(keep) {
  const { one, other, numbers } = Object.fromEntries(new FormData(compareForm));
  const found = comparison(one, other, numbers ?? "value");
  const section = document.getElementById("compare");
  section.querySelector("output").textContent = found.sentence;
  const box = section.querySelector(".plot-box");
  if (!box.firstChild) box.append(plotBox());
  box.hidden = !found.sheets.length;
  if (found.sheets.length) draw(box.firstChild, found, "Two methods");
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
  for (const list of [one, other]) list.append(...METHODS.map((name) => option(name, name)));
  const shared = (name) => ENTRIES.filter(({ of, method }) => method === name && of("value")).length;
  const largest = (word) => METHODS.filter((name) => name.includes(word)).sort((a, b) => shared(b) - shared(a))[0];
  one.value = largest("FlexRound") ?? METHODS[0];
  other.value = largest("AdaRound") ?? METHODS[1];
  compareForm.addEventListener("change", () => compare(true));
  compare(false);
}
