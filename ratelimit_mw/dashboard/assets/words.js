// Makes elements, and writes numbers, times and clients. Text enters the page as text nodes and attributes only.
export const $ = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value != null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false && child !== ""));
  return element;
}

// An attribute whose value is a function listens to the event of its name.
export const el = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
export const button = (text, act, more = {}) => el("button", { type: "button", class: "small", click: act, ...more }, text);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Replaces the children unless they would look the same, so that what is selected or focused stays.
export function setChildren(element, ...children) {
  const made = el(element.localName, {}, ...children);
  if (made.innerHTML !== element.innerHTML) element.replaceChildren(...made.childNodes);
}

// Shows one child for each item, in their order. Children are kept by key; `frozen`: none moves or goes.
export function showRows(parent, items, keyOf, make, { frozen = false } = {}) {
  const old = new Map([...parent.children].map((child) => [child.dataset.row, child]));
  const made = items.map((item) => {
    const row = make(item);
    row.dataset.row = keyOf(item);
    const kept = old.get(row.dataset.row);
    old.delete(row.dataset.row);
    if (kept == null) return row;
    if (kept.innerHTML !== row.innerHTML || kept.className !== row.className) fill(kept, row);
    return kept;
  });
  if (frozen) {
    parent.append(...made.filter((row) => row.parentNode !== parent));
    return;
  }
  for (const row of old.values()) row.remove();
  made.forEach((row, place) => {
    if (parent.children[place] !== row) parent.insertBefore(row, parent.children[place] ?? null);
  });
}

const controls = (cell) => [cell, ...cell.querySelectorAll("button, input, select")];

// Takes over the cells that changed. The focus stays at the same place in its cell.
function fill(kept, row) {
  kept.className = row.className;
  const cells = [...row.children];
  if (cells.length !== kept.children.length) return kept.replaceChildren(...cells);
  [...kept.children].forEach((cell, place) => {
    if (cell.isEqualNode(cells[place])) return;
    const focused = controls(cell).indexOf(document.activeElement);
    cell.replaceWith(cells[place]);
    controls(cells[place])[focused]?.focus({ preventScroll: true });
  });
}

export const isBusy = (element) => element.matches(":hover") || element.contains(document.activeElement);

export const number = (value) =>
  value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value !== 0 && Math.abs(value) < 10 ? 1 : 0 });

export function percent(part, whole) {
  if (!part) return "0";
  const share = (part / whole) * 100;
  return `${share.toFixed(share < 10 ? 1 : 0)} %`;
}

export const PERIODS = { 1: "second", 60: "minute", 3600: "hour", 86400: "day" };

// "5/60s using gcra" as "5 per minute"; other texts as they are
export const limitText = (text) => text.replace(/^(\d+)\/(\d+)s using \w+$/, (all, quota, period) => (PERIODS[period] ? `${quota} per ${PERIODS[period]}` : all));

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

const iso = (time) => new Date(time * 1000).toISOString();
export const clock = (time) => iso(time).slice(11, 19);

// A time of today as 11:42:31, of this week as Thu 16:20, of another as 11-14 16:20; always UTC.
export function moment(time, now) {
  if (iso(time).slice(0, 10) === iso(now).slice(0, 10)) return clock(time);
  const day = now - time < 6 * 86400 && time < now
    ? new Date(time * 1000).toLocaleDateString("en", { weekday: "short", timeZone: "UTC" }) : iso(time).slice(5, 10);
  return `${day} ${iso(time).slice(11, 16)}`;
}

export function span(seconds) {
  if (seconds < 0.5) return "0 s";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 3570) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${number(Math.round(seconds / 360) / 10)} h` : `${Math.round(seconds / 86400)} d`;
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export const milliseconds = (seconds) => (seconds == null ? "–" : number(seconds * 1000));

function decoded(value) {
  try {
    return decodeURIComponent(value);
  } catch {
    return value;
  }
}

// A client's key in the store as people name it: `ip=192.0.2.7` is 192.0.2.7; a hash stays as it is.
export function clientName(key) {
  if (!key.includes("=")) return key;
  return key.split("+").map((part) => {
    const [kind, value] = [part.slice(0, part.indexOf("=")), decoded(part.slice(part.indexOf("=") + 1))];
    return kind === "ip" ? value : `${kind} ${value}`;
  }).join(", ");
}

// A text in which each hash of a client is cut to its first characters, so that what follows it can be read.
export const shortened = (text) => text.replace(/\b([0-9a-f]{12})[0-9a-f]{20}\b/g, "$1");

// Whether a switch or other limits can change a rule: not the one that counts what blocks refuse.
export const isLimit = (rule) => rule.mode !== "exempt" && rule.mode !== "blocklist";

// The client of an override, for a key in the store.
export function whoOf(key) {
  const [kind, value] = [key.slice(0, key.indexOf("=")), key.slice(key.indexOf("=") + 1)];
  if (key.includes("+") || !["ip", "user"].includes(kind) || value.startsWith("~")) return { key };
  return { [kind]: decoded(value) };
}

export function spark(values, width, height, kind) {
  const highest = Math.max(...values, 1);
  const points = values.map((value, place) =>
    `${((place * width) / Math.max(1, values.length - 1)).toFixed(1)},${(height - 1 - (value / highest) * (height - 3)).toFixed(1)}`);
  return svg("svg", { class: `spark ${kind}`, width, height, "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}

export const DURATIONS = [[900, "15 minutes"], [3600, "1 hour"], [14400, "4 hours"], [86400, "1 day"], [604800, "1 week"], [2592000, "30 days"]];
