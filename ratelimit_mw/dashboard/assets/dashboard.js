// The live page: asks data.json once a second, and shows it.
import { trafficChart } from "./charts.js";
import { post, prepareDialogs } from "./dialogs.js";
import { $, button, capital, clientName, clock, el, isBusy, isLimit, limitText, milliseconds, moment, number, percent, plural, setChildren, setText, shortened, showRows, spark, span, svg, whoOf } from "./words.js";

const PERIOD = 1000; // milliseconds between two questions
const AFTER_FAILURE = 2000; // milliseconds
const TIMEOUT = 10000; // milliseconds for an answer
const LONG_PERIOD = 15000; // milliseconds between two questions for a chart by minute
const BY_SECOND = 300; // seconds that are known by second
const SETTLING = 2; // the last seconds, which processes are still reporting
const RECENT = 5; // seconds of which a rate is the mean
const FEW = 10; // clients that are shown at first
const MANY = 0.05; // a share of refusals that is shown in red

let data = null, failure = null, isPaused = false, isAsking = false, timer = 0, showsAll = false, said = "";
const chart = { seconds: BY_SECOND, rule: "", rows: [], asked: 0 };

const dialogs = prepareDialogs({
  data: () => data,
  done: (answer) => {
    tell(`Done: ${answer.done}`, answer.id);
    ask();
  },
});

const sum = (rows, place) => rows.reduce((total, row) => total + row[place], 0);
const mayWrite = () => Boolean(data.write);

async function get(query) {
  const answer = await fetch(`data.json?${query}`, { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store" });
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `status ${answer.status}`);
  return answer.json();
}

async function ask() {
  clearTimeout(timer);
  if (isAsking || isPaused || document.hidden) return;
  isAsking = true;
  const started = performance.now();
  try {
    data = await get(`seconds=${BY_SECOND}&clients=${$("since").value}`);
    await askChart(started);
    failure = null;
  } catch (error) {
    failure ??= { at: Date.now() / 1000, text: error.name === "Error" ? error.message : "" };
  }
  isAsking = false;
  if (data != null) show();
  else showNotices();
  const pause = failure == null ? PERIOD : AFTER_FAILURE;
  timer = setTimeout(ask, Math.max(50, started + pause - performance.now()));
}

// The chart's rows: those of the data, or those of one rule or a longer time, which are asked for.
async function askChart(now) {
  const wanted = `seconds=${chart.seconds}${chart.rule ? `&rule=${encodeURIComponent(chart.rule)}` : ""}`;
  if (wanted === `seconds=${BY_SECOND}`) chart.rows = data.series;
  else if (wanted !== chart.wanted || chart.seconds === BY_SECOND || now - chart.asked >= LONG_PERIOD) {
    chart.rows = (await get(wanted)).series;
    chart.asked = now;
  } else return;
  chart.wanted = wanted;
}

function show() {
  showHeader();
  showNotices();
  showTiles();
  showChart();
  showRules();
  showClients();
  showTail();
  showChanges();
  showFoot();
}

function showHeader() {
  const { store, at, name, processes, processes_known: known, digests } = data;
  const isAway = store.state !== "ok";
  setText($("name"), name);
  setChildren($("store"), el("span", { class: isAway ? "dot bad" : "dot", "aria-hidden": "true" }), isAway
    ? el("b", { class: "bad-text" }, capital(`${store.kind} does not reply`))
    : store.kind === "memory" ? "counts in memory" : capital(`${store.kind} replies${store.call == null ? "" : `, ${milliseconds(store.call)} ms`}`));
  setText($("processes"), !processes ? "no process reports" : known == null || known <= processes ? plural(processes, "process", "processes") : `${processes} of ${known} processes`);
  setChildren($("digests"), digests?.length ? "settings " : "", ...(digests ?? []).map((digest) => el("code", {}, `${digest} `)));
  setText($("clock"), `${clock(at)} UTC`);
  $("clock").classList.toggle("bad-text", failure != null);
  $("stop").hidden = !mayWrite() || allSwitched() != null;
}

const allSwitched = () => data.overrides.find((one) => one.who === "everyone" && one.rule == null && ["off", "shadow"].includes(one.action));

function showNotices() {
  const notices = [];
  const add = (key, kind, strong, more, ...buttons) => notices.push([key, kind, strong, more, buttons.filter(Boolean)]);
  if (failure != null) {
    add("failure", "bad", `This page's server has not answered since ${clock(failure.at)}.`, ` ${failure.text} ${data ? "What you see is from then; limiting goes on without it." : ""} It is asked again every 2 s.`);
  }
  if (data != null) {
    const { problem } = data;
    const switched = allSwitched();
    if (data.metrics === false) add("metrics", "", "No request is counted,", " because metrics = false in the settings. Set it to true.");
    if (switched) {
      add("switched", "bad", switched.action === "off" ? "Limiting is switched off." : "No request is refused.",
        ` ${switched.by} switched all rules to ${switched.action}${switched.note ? ` (${switched.note})` : ""}; ends at ${moment(switched.until, data.at)}.`, mayWrite() && button("Refuse again …", () => endOverride(switched)));
    }
    if (problem) {
      const buttons = problem.kind === "store" ? [button("What to do", dialogs.advice)] : mayWrite() ? (problem.steps ?? []).map(stepButton) : [];
      add("problem", problem.kind === "store" ? "bad" : "", problem.text, ` ${shortened(problem.more ?? "")}`, ...buttons);
    }
  }
  showRows($("notice"), notices, ([key]) => key, ([, kind, strong, more, buttons]) =>
    el("div", { class: `notice ${kind}` }, el("p", {}, el("b", {}, strong), more), ...buttons));
  // announced when it is another problem, not when its numbers change
  const name = JSON.stringify([notices.map(([key]) => key), data?.problem?.kind, data?.problem?.steps]);
  if (name !== said && (said || notices.length)) setText($("said"), notices.map(([, , strong, more]) => strong + more).join(" "));
  said = name;
}

function stepButton(step) {
  if (step.do === "change") return button(`Change ${step.rule} …`, () => dialogs.change(step.rule));
  return button(`Block ${shortened(Object.values(step.who)[0])} …`, () => block(step.who, Object.values(step.who)[0], step.rule));
}

function showTiles() {
  const { store, series, yesterday, limited, waiting, at_work: work } = data;
  const rows = series.slice(-RECENT - SETTLING, -SETTLING || undefined);
  const [admitted, refused] = [sum(rows, 1) / RECENT, sum(rows, 2) / RECENT];
  const isAway = store.state !== "ok";
  const queue = waiting ?? [];
  const tiles = [
    ["requests", number(admitted + refused), "/s", yesterday ? `${number(yesterday[0] + yesterday[1])}/s this time yesterday` : ""],
    ["refused", number(refused), "/s", `${percent(refused, admitted + refused)}${refused ? "" : " %"}${yesterday ? `; ${percent(yesterday[1], yesterday[0] + yesterday[1])}${yesterday[1] ? "" : " %"} yesterday` : ""}`, refused > MANY * (admitted + refused)],
    ["clients limited now", number(limited?.clients ?? null), "", limited?.clients ? `${number(limited.of_rule)} of them by ${limited.rule}` : "in the last minute"],
    [capital(`${store.kind}, ${store.p99 == null ? "mean call" : "99 of 100 calls within"}`), isAway ? "–" : milliseconds(store.p99 ?? store.call ?? null), "ms", isAway ? "no reply" : store.timeout == null ? "" : `limit ${milliseconds(store.timeout)} ms`, isAway],
    [`decided without ${store.kind}`, number(store.without ?? null), "/s", store.without ? "counted in each process" : "", store.without > 0],
    ["waiting", number(queue.reduce((total, one) => total + one.waiting, 0)), "", queue.length ? `in the queue of ${queue.map((one) => one.rule).join(", ")}` : ""],
  ];
  if (work) tiles.push(["at work", number(work.now), `of ${number(work.limit)}`, `9 of 10 answered in ${milliseconds(work.reached)} ms, goal ${milliseconds(work.goal)} ms`, work.reached > work.goal]);
  showRows($("tiles"), tiles, ([name]) => name, ([name, value, unit, note, isBad]) =>
    el("div", { class: "tile" }, el("span", { class: "name" }, name), el("b", { class: isBad ? "bad-text" : null }, value, el("small", {}, ` ${unit}`)), el("span", { class: "note" }, note)));
  setText($("admitted"), `${number(admitted)}/s`);
  setText($("refused"), `${number(refused)}/s`);
  document.title = `${number(refused)} refused/s · ${data.name}`;
}

let draw = null, pointed = null;

function showChart() {
  const isBySecond = chart.seconds === BY_SECOND;
  draw ??= trafficChart($("chart"), (row) => { pointed = row; showPointed(); });
  const names = ["", ...data.rules.map((rule) => rule.rule)];
  if (!isBusy($("pick")) && names.join("\n") !== [...$("pick").options].map((one) => one.value).join("\n")) {
    $("pick").replaceChildren(...names.map((name) => el("option", { value: name }, name || "all rules")));
    $("pick").value = chart.rule;
  }
  const rows = chart.rows.slice(0, isBySecond ? -SETTLING : -1); // without what is still being reported
  const from = rows[0]?.[0] ?? Infinity;
  draw(rows, data.changes.filter((one) => one.at >= from).map((one) => ({ at: one.at, what: shortened(one.what).slice(0, 40) })));
  setText($("traffic-title"), `Requests per ${isBySecond ? "second" : "minute"}`);
  showPointed();
}

function showPointed() {
  if (data == null) return;
  const names = { 300: "5 min", 3600: "1 h", 86400: "24 h" };
  setText($("pointed"), pointed
    ? `at ${clock(pointed[0])}: ${number(pointed[1])} admitted, ${number(pointed[2])} refused`
    : `last ${names[chart.seconds]}: ${number(sum(chart.rows, 1))} admitted, ${number(sum(chart.rows, 2))} refused`);
}

const ORDER = { on: 0, blocklist: 0, shadow: 1, off: 2, exempt: 3 };
const TAGS = { shadow: "shadow", off: "off", exempt: "exempt" };

function showRules() {
  const wouldRefuse = (rule) => (rule.mode === "shadow" ? rule.minute[2] : rule.minute[1]);
  const rules = [...data.rules].sort((a, b) => ORDER[a.mode] - ORDER[b.mode] || wouldRefuse(b) - wouldRefuse(a));
  showRows($("rule-rows"), rules, (rule) => rule.rule, ruleRow, { frozen: isBusy($("rule-rows")) });
}

function ruleRow(rule) {
  const isShadow = rule.mode === "shadow";
  const [all, refused] = [rule.minute[0] + rule.minute[1], isShadow ? rule.minute[2] : rule.minute[1]];
  const isKnown = all > 0 || ["on", "off", "blocklist"].includes(rule.mode); // requests of shadow and exempt rules count where else they are limited
  const left = rule.until ? `${rule.mode === "on" ? "changed" : TAGS[rule.mode]}, ${span(rule.until - data.at)} left` : TAGS[rule.mode];
  return el("tr", {},
    el("td", { class: "wide" }, el("span", { class: "rule" }, rule.rule), " ", left && el("span", { class: `tag ${rule.mode}` }, left),
      el("small", {}, el("code", {}, rule.limits ?? (rule.mode === "exempt" ? "not limited" : "")), ` ${rule.match ?? ""}`)),
    el("td", { class: "n", "data-name": "requests/s" }, number(isKnown ? all / 60 : null)),
    el("td", { class: `n ${refused > MANY * all && !isShadow ? "bad-text" : ""}`, "data-name": isShadow ? "would refuse" : "refused", title: isKnown ? `${number(refused)} of ${number(all)} in 60 s` : "" }, isKnown ? percent(refused, all) : `${number(refused)}${refused ? " a min" : ""}`),
    el("td", {}, spark(rule.spark ?? [], 110, 24, rule.mode)),
    el("td", { class: "n", "data-name": "clients" }, number(rule.clients ?? null)),
    el("td", { class: "wide" }, el("div", { class: "acts" }, mayWrite() && isLimit(rule)
      && button("Change …", () => dialogs.change(rule.rule), { "aria-label": `Change the rule ${rule.rule} …` }))));
}

function showClients() {
  const wanted = $("filter").value.trim().toLowerCase();
  const found = data.refused_most.filter((one) => `${clientName(one.key)} ${one.key} ${one.rule}`.toLowerCase().includes(wanted));
  showRows($("client-rows"), showsAll ? found : found.slice(0, FEW), (one) => `${one.key} ${one.rule}`, clientRow, { frozen: isBusy($("client-rows")) });
  $("all-clients").hidden = found.length <= FEW;
  setText($("all-clients"), showsAll ? `Show ${FEW}` : `Show all ${found.length}`);
  $("no-clients").hidden = found.length > 0;
  setText($("no-clients"), !data.remember_refused ? "The setting remember_refused is off, so no refusal is remembered."
    : data.refused_most.length ? "None has this in its name or rule." : "No client was refused.");
}

function clientRow({ key, rule, refused, spark: values, free_in: free, note, blocked }) {
  const name = clientName(key);
  const block_ = data.overrides.find((one) => one.id === blocked);
  return el("tr", {},
    el("td", { class: "wide" }, el("span", { class: "mono client", title: name }, shortened(name)), note && el("small", {}, note)),
    el("td", { "data-name": "rule", class: "rule-name" }, rule),
    el("td", { class: "n bad-text", "data-name": "refused" }, number(refused)),
    el("td", {}, values && spark(values, 90, 22, "")),
    el("td", { class: "n", "data-name": "free in" }, block_ ? el("span", { class: "tag off" }, `blocked, ${span(block_.until - data.at)}`) : free == null ? "–" : span(free)),
    el("td", { class: "wide" }, el("div", { class: "acts" },
      button("Look", () => lookAt(key, rule), { "aria-label": `Look at ${name}` }),
      mayWrite() && button("Reset …", () => reset(name, rule, { key, rule }), { "aria-label": `Reset ${name} in ${rule} …` }),
      mayWrite() && (block_ ? button("Unblock …", () => endOverride(block_), { "aria-label": `Unblock ${name} …` })
        : button("Block …", () => block(whoOf(key), name), { "aria-label": `Block ${name} …` })))));
}

function showTail() {
  const isStill = isBusy($("tail"));
  setText($("sampled"), !data.remember_refused ? "off" : isStill ? "still while you read" : data.sampled > 1 ? `1 of ${number(data.sampled)} shown` : "all shown");
  if (isStill) return;
  showRows($("tail"), data.refusals, (one) => one.id, (one) => el("li", {},
    el("span", { class: "mono soft" }, clock(one.at)),
    el("span", { class: "cut", title: `${clientName(one.key)} ${one.method} ${one.path}` }, el("b", {}, shortened(clientName(one.key))), " ", el("span", { class: "soft" }, `${one.method} ${one.path}`)),
    el("span", { class: "soft cut", title: one.rule }, one.rule)));
}

function showChanges() {
  const { changes, overrides, at } = data;
  const isFrozen = isBusy($("log"));
  $("in-force").hidden = overrides.length === 0;
  showRows($("override-rows"), overrides, (one) => one.id, (one) => el("li", {},
    el("span", { class: "mono", title: "ends" }, `${span(one.until - at)} left`),
    el("span", {}, el("b", {}, one.action), ` ${one.limits ?? ""} ${whoText(one.who)}${one.rule == null ? "" : ` in ${one.rule}`}`,
      el("small", {}, [one.by, one.note].filter(Boolean).join(": "))),
    mayWrite() ? button("End …", () => endOverride(one), { "aria-label": `End ${one.action} of ${whoText(one.who)} …` }) : el("span")), { frozen: isFrozen });
  showRows($("change-rows"), changes, (one) => one.id, (one) => el("li", {},
    el("span", { class: "mono" }, moment(one.at, at)),
    el("span", {}, el("span", { class: one.undone ? "undone" : null }, `${one.by}: ${one.what}`), one.undone && " (undone)", one.note && el("small", {}, one.note)),
    mayWrite() && one.can_undo && !one.undone ? button("Undo", () => undo(one.id), { "aria-label": `Undo ${one.what}` }) : el("span")), { frozen: isFrozen });
  $("no-changes").hidden = changes.length > 0;
}

const whoText = (who) => (who === "everyone" ? "for everyone" : clientName(who.startsWith("key=") ? who.slice(4) : who));

function showFoot() {
  const { you, store, plain_keys: isPlain, at } = data;
  const reading = store.is_own ? "Read from the counts of this process only, because metrics_folder is not set." : store.kind === "memory" ? "Read from the counts of the processes, once a second." : `Read from ${store.kind} once a second, for all viewers together.`;
  setText($("foot"), `${reading} ${isPlain ? "Clients are shown because plain_keys is set." : "Clients are shown as hashes, because plain_keys is not set."} ${
    you.name ? `Signed in as ${you.name} (${you.role})` : `You are ${you.role === "operator" ? "an operator" : "a viewer"}`}${you.until ? `, session ends at ${moment(you.until, at)}` : ""}.`);
  $("sign-out").hidden = !you.until;
}

// Tells at the bottom of the window what was done; `id`: of the change, to undo it.
function tell(text, id = null) {
  $("done").replaceChildren(el("p", {}, shortened(text)), id && mayWrite() ? button("Undo", () => undo(id)) : "", button("Close", () => { $("done").hidden = true; }));
  $("done").hidden = false;
}

async function undo(id) {
  $("done").hidden = true;
  try {
    const answer = await post("change", data.token, { do: "undo", id, note: "" });
    tell(`Done: ${answer.done}`, answer.id);
  } catch (error) {
    tell(error.message);
  }
  ask();
}

const endOverride = (one) => dialogs.ask({ title: `End ${one.action} ${whoText(one.who)}`, act: "End it", body: { do: "clear", id: one.id },
  text: `It was set by ${one.by} and would end at ${moment(one.until, data.at)}.` });
const reset = (name, rule, body) => dialogs.ask({ title: `Reset ${name}`, act: "Reset", body: { do: "reset", ...body },
  text: `Forgets what it has used${rule ? ` of ${rule}` : ""}: its next request is admitted.` });
const block = (who, name) => dialogs.ask({ title: `Block ${name}`, act: "Block", hasEnd: true, body: { do: "override", action: "block", who },
  text: "Its requests are refused with 403, until this ends." });

async function look(body) {
  let found;
  try {
    found = await post("look", data.token, body);
  } catch (error) {
    found = { mistake: error.message };
  }
  if (found.mistake) return $("look-found").replaceChildren(el("p", { class: "mistake" }, found.mistake));
  const buckets = found.buckets.map((one) => el("div", { class: "bucket" },
    el("span", {}, el("b", {}, one.name ?? one.rule), el("span", { title: one.limit }, ` ${limitText(one.limit)}`)), el("span", {}, one.quota ? `${number(one.remaining)} of ${number(one.quota)} left` : `${number(one.remaining)} left`),
    one.quota && svg("svg", { class: "used", role: "img", "aria-label": `${percent(one.quota - one.remaining, one.quota)} used` },
      svg("rect", { width: `${Math.max(0, 100 - (one.remaining / one.quota) * 100)}%`, height: "100%" })),
    el("span", { class: "soft" }, one.remaining > 0 || !one.retry_after ? one.reset_after > 0 ? `whole again in ${span(one.reset_after)}` : "nothing used" : `free again in ${span(one.retry_after)}`)));
  const overrides = found.overrides.map((one) => el("p", {}, el("b", {}, `${one.action} `), `${one.limits ?? ""} ${shortened(whoText(one.who))}, ${span(one.until - data.at)} left (${[one.by, one.note].filter(Boolean).join(": ")})`));
  const target = body.key == null ? { request: body.request, client: body.client } : { key: body.key, rule: body.rule };
  $("look-found").replaceChildren(...buckets, ...overrides, el("div", { class: "row" },
    mayWrite() && found.buckets.length > 0 ? button(buckets.length > 1 ? "Reset them …" : "Reset …", () => reset(found.client ?? clientName(body.key), body.rule, target)) : "",
    el("p", { class: "soft" }, found.why.join(" "))));
  return undefined;
}

function lookAt(key, rule) {
  const who = whoOf(key);
  $("look-client").value = who.ip ? `ip ${who.ip}` : who.user ? `user ${who.user}` : `key ${key}`;
  $("look-request").value = data.refusals.find((one) => one.key === key && one.rule === rule) ? requestOf(key, rule) : "";
  $("look").scrollIntoView({ block: "nearest" });
  $("look-title").focus({ preventScroll: true });
  look({ key, rule });
}

function requestOf(key, rule) {
  const { method, path } = data.refusals.find((one) => one.key === key && one.rule === rule);
  return `${method} ${path}`;
}

function pause() {
  isPaused = !isPaused;
  setText($("pause"), isPaused ? "Go on" : "Pause");
  $("pause").setAttribute("aria-pressed", String(isPaused));
  ask();
}

$("pause").addEventListener("click", pause);
$("stop").addEventListener("click", () => dialogs.stop());
$("filter").addEventListener("input", () => data && showClients());
$("since").addEventListener("change", ask);
$("all-clients").addEventListener("click", () => { showsAll = !showsAll; showClients(); });
$("pick").addEventListener("change", () => { chart.rule = $("pick").value; ask(); });
document.querySelectorAll("input[name=period]").forEach((one) => one.addEventListener("change", () => { chart.seconds = Number(one.value); ask(); }));
$("look-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (data) look({ request: $("look-request").value, client: $("look-client").value });
});
// what the message at the bottom covers can be read again with the next click
addEventListener("click", (event) => { if (!event.target.closest("#done, dialog")) $("done").hidden = true; });
$("sign-out").addEventListener("click", async () => {
  await post("logout", data.token, {}).catch(() => null);
  location.reload();
});
addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === " " && event.target === document.body) { event.preventDefault(); pause(); }
  if (event.key === "/" && !event.target.closest("input, select, textarea")) { event.preventDefault(); $("filter").focus(); }
});
document.addEventListener("visibilitychange", ask);
ask();
