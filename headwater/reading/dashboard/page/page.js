// Asks for the answers once a second and draws the panels that have changed.

import { bars, element, line, number, table } from "/chart.js";

const EVERY_MS = 1000, EVERY_MS_MOST = 15000;
const DRAW = { line, bars, number, rows: table };
const heading = document.getElementById("title");
const state = document.getElementById("state");
const panels = document.getElementById("panels");
const drawn = new Map();
let tag = null, since = "nothing was seen yet", wait = EVERY_MS, timer;

function body(panel) {
  if (panel.error) {
    const told = [element("p", panel.error.message, "error")];
    if (panel.error.hint) told.push(element("p", panel.error.hint, "note"));
    return told;
  }
  if (!panel.rows.length) return [element("p", "nothing yet", "empty")];
  return DRAW[panel.kind](panel);
}

function draw(panel) {
  const text = JSON.stringify(panel);
  const known = drawn.get(panel.title);
  if (known?.text === text) return known.section; // what has not changed stays, with the pointer on it
  const section = known?.section ?? element("section");
  const head = element("h2", panel.title);
  head.id = `panel-${drawn.has(panel.title) ? known.place : drawn.size}`;
  section.setAttribute("aria-labelledby", head.id);
  section.dataset.kind = panel.kind;
  const note = panel.note ? [element("p", panel.note, "note")] : [];
  section.replaceChildren(head, ...body(panel), ...note);
  drawn.set(panel.title, { text, section, place: known?.place ?? drawn.size });
  return section;
}

function show(answer) {
  document.title = heading.textContent = answer.title;
  const sections = answer.panels.map(draw);
  if (sections.length !== panels.children.length || sections.some((each, place) => panels.children[place] !== each)) {
    panels.replaceChildren(...sections);
  }
  since = answer.published_at
    ? `as of ${new Date(answer.published_at).toLocaleTimeString()} · ${answer.applied_through}`
    : "no view has been built yet";
}

async function ask() {
  clearTimeout(timer);
  try {
    const answer = await fetch("/panels.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      show(await answer.json());
      tag = answer.headers.get("ETag");
    } else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
    state.textContent = since;
    state.className = "";
    wait = EVERY_MS;
  } catch {
    state.textContent = `no answer; ${since}`;
    state.className = "lost";
    wait = Math.min(2 * wait, EVERY_MS_MOST);
  }
  clearTimeout(timer);
  timer = setTimeout(ask, document.hidden ? EVERY_MS_MOST : wait);
}

document.addEventListener("visibilitychange", () => document.hidden || ask());
ask();
