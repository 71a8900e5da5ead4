// What a panel looks like: each function takes a panel's answer and gives an element. Text is only
// ever set as text, so no value of a row can become markup.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 420, HEIGHT = 160, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 24;
const ROWS_SHOWN = 8, BARS_SHOWN = 12, LINES_SHOWN = 3;
const DIGITS = /^-?\d+(\.\d+)?$/;
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;

export function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export function shown(value, unit = "") {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") {
    const digits = Math.abs(value) >= 1000 ? 0 : 2;
    return withUnit(value.toLocaleString(undefined, { maximumFractionDigits: digits }), unit);
  }
  if (amount(value) !== null) return withUnit(value, unit);
  if (typeof value === "string" && TIME.test(value)) return clock(value);
  if (Array.isArray(value)) return value.map((each) => shown(each)).join(", ");
  if (typeof value === "object") return Object.values(value).map((each) => shown(each)).join(" ");
  return String(value);
}

const withUnit = (text, unit) => (unit ? `${text} ${unit}` : text);

function clock(text) {
  const at = new Date(text);
  const today = new Date().toDateString() === at.toDateString();
  const time = at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${at.toLocaleDateString(undefined, { month: "short", day: "numeric" })} ${time}`;
}

export function number({ rows, unit }) {
  const [value, before] = rows[0] ?? [];
  const line = element("p", undefined, "value");
  line.append(element("span", shown(value)));
  if (unit) line.append(" ", element("span", unit, "unit"));
  const all = [line];
  if (typeof before === "number" && typeof value === "number") {
    const change = value - before;
    all.push(element("p", `${change < 0 ? "−" : "+"}${shown(Math.abs(change), unit)} from ${shown(before, unit)}`, "note"));
  }
  return all;
}

// What is drawn of a value: a number that the page would round, and NaN, are texts here.
function amount(value) {
  const made = typeof value === "string" && DIGITS.test(value) ? Number(value) : value;
  return typeof made === "number" ? made : null;
}

export function bars({ rows, unit }) {
  const list = element("dl", undefined, "bars");
  const length = (value) => Math.abs(amount(value) ?? 0);
  const most = Math.max(...rows.map((row) => length(row[1])), 0) || 1;
  for (const [name, value] of rows.slice(0, BARS_SHOWN)) {
    const bar = element("div", undefined, amount(value) < 0 ? "bar below" : "bar");
    bar.style.width = `${(100 * length(value)) / most}%`;
    const cell = element("dd");
    cell.append(bar);
    const label = element("dt", shown(name));
    label.title = label.textContent; // where there is no room for all of it
    list.append(label, cell, element("dd", shown(value, unit)));
  }
  return [list, ...more(rows.length, BARS_SHOWN)];
}

export function table({ columns, rows, unit, count }) {
  const numeric = columns.map((_, place) => rows.some((row) => typeof row[place] === "number"));
  const made = element("table");
  const head = element("tr");
  columns.forEach((name, place) => {
    const cell = element("th", name.replaceAll("_", " "), numeric[place] ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  });
  const first = element("thead"), body = element("tbody");
  first.append(head);
  for (const row of rows.slice(0, ROWS_SHOWN)) {
    const line = element("tr");
    row.forEach((value, place) => line.append(element("td", shown(value, numeric[place] ? unit : ""), kindOf(value, numeric[place]))));
    body.append(line);
  }
  made.append(first, body);
  const scroll = element("div", undefined, "scroll");
  scroll.append(made);
  return [scroll, ...more(count, ROWS_SHOWN)];
}

function kindOf(value, numeric) {
  if (numeric) return "number";
  return typeof value === "string" && TIME.test(value) ? "time" : "";
}

function more(count, most) {
  return count > most ? [element("p", `and ${(count - most).toLocaleString()} more`, "more")] : [];
}

const placeOf = (value) => (typeof value === "number" ? value : Date.parse(value));

export function line({ columns, rows, unit, title }) {
  const points = rows.filter((row) => Number.isFinite(placeOf(row[0]))).sort((a, b) => placeOf(a[0]) - placeOf(b[0]));
  const series = columns.slice(1, 1 + LINES_SHOWN);
  const values = points.flatMap((row) => row.slice(1, 1 + series.length)).map(amount).filter((each) => each !== null);
  if (!values.length) return [element("p", "nothing yet", "empty")];
  const low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9);
  const from = placeOf(points[0][0]), to = placeOf(points.at(-1)[0]);
  const x = (at) => LEFT + ((WIDTH - LEFT - RIGHT) * (to > from ? (at - from) / (to - from) : 0.5));
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low));

  const last = points.at(-1);
  const said = series.map((name, place) => `${name.replaceAll("_", " ")} ${shown(last[place + 1], unit)}`).join(", ");
  const chart = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${said} at ${shown(last[0])}` });
  for (const value of [low, (low + high) / 2, high]) {
    chart.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    const label = drawn("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" });
    label.textContent = value.toLocaleString(undefined, { notation: "compact", maximumFractionDigits: 1 });
    chart.append(label);
  }
  for (const [place, anchor] of [[points[0], "start"], [last, "end"]]) {
    if (place === last && points.length === 1) break;
    const label = drawn("text", { x: x(placeOf(place[0])), y: HEIGHT - 6, "text-anchor": anchor });
    label.textContent = shown(place[0]);
    chart.append(label);
  }
  series.forEach((_, number) => {
    const path = points.filter((row) => amount(row[number + 1]) !== null)
      .map((row) => `${x(placeOf(row[0])).toFixed(1)},${y(amount(row[number + 1])).toFixed(1)}`);
    if (path.length === 1) path.push(path[0].replace(/^[\d.]+/, (at) => String(Number(at) + 2)));
    chart.append(drawn("polyline", { class: `line line-${number}`, points: path.join(" ") }));
  });

  const legend = element("p", undefined, "legend");
  const here = drawn("line", { class: "here", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  chart.append(here);
  const tell = (row) => legend.replaceChildren(
    element("span", shown(row[0])),
    ...series.map((name, place) => element("span", `${name.replaceAll("_", " ")} ${shown(row[place + 1], unit)}`)),
  );
  tell(last);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = points.reduce((one, two) => (Math.abs(x(placeOf(two[0])) - at) < Math.abs(x(placeOf(one[0])) - at) ? two : one));
    here.setAttribute("x1", x(placeOf(near[0])));
    here.setAttribute("x2", x(placeOf(near[0])));
    here.setAttribute("visibility", "visible");
    tell(near);
  });
  chart.addEventListener("pointerleave", () => {
    here.setAttribute("visibility", "hidden");
    tell(last);
  });
  return [chart, legend];
}
