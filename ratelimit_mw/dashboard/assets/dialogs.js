// The dialogs that change something: a rule, everything, or one client.
import { peaksChart } from "./charts.js";
import { $, DURATIONS, PERIODS, el, isLimit, moment, number, percent, plural, setChildren, setText, span } from "./words.js";

const QUOTA = /^(\s*)(\d+)(\s*(?:\/|per)\s*)([\w. ]*?)(?=\s+(?:burst|using|strict)\b|\s*$)/;
const PREVIEW_AFTER = 300; // milliseconds without another key

export async function post(path, token, body) {
  const headers = { "Content-Type": "application/json", "X-Token": token };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
  if (answer == null) throw new Error("The server of this page does not answer.");
  if (answer.status === 401) location.reload();
  const found = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error ?? `The server of this page answered with status ${answer.status}.`);
  return found;
}

// `page`: data() is the latest data; done(answer) tells what was changed.
export function prepareDialogs(page) {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    dialog.querySelector(".cancel").addEventListener("click", () => dialog.close());
  }
  const send = async (dialog, mistake, body) => {
    const apply = dialog.querySelector(".foot button");
    setText(mistake, "");
    apply.disabled = true;
    try {
      page.done(await post("change", page.data().token, body));
      dialog.close();
    } catch (error) {
      setText(mistake, error.message);
    } finally {
      apply.disabled = false;
    }
  };
  const ask = prepareAsking(page, send);
  const change = prepareChange(page, send);
  return { ask, change, stop: prepareStop(page, send, change), advice: () => $("advice").showModal() };
}

function showDurations(select, now) {
  select.replaceChildren(...DURATIONS.map(([seconds, text]) =>
    el("option", { value: seconds }, `${text}, until ${moment(now + seconds, now).replace(/(:\d\d):\d\d$/, "$1")}`)));
}

// Returns ask({ title, text, act, rule, hasEnd, body }): asks for a reason and, if wanted, an end and a rule.
function prepareAsking(page, send) {
  const dialog = $("asking");
  let asked = null;
  dialog.querySelector("form").addEventListener("submit", () => {
    const body = { ...asked.body, note: $("asking-note").value };
    if (asked.hasEnd) Object.assign(body, { for: Number($("asking-for").value), rule: $("asking-rule").value || null });
    send(dialog, $("asking-error"), body);
  });
  return (question) => {
    asked = question;
    setText($("asking-title"), question.title);
    setText($("asking-text"), question.text);
    setText($("asking-apply"), question.act);
    setText($("asking-error"), "");
    $("asking-note").value = "";
    $("asking-for-part").hidden = $("asking-rule-part").hidden = !question.hasEnd;
    showDurations($("asking-for"), page.data().at);
    const rules = page.data().rules.filter(isLimit).map((rule) => rule.rule);
    $("asking-rule").replaceChildren(el("option", { value: "" }, "in all rules"), ...rules.map((rule) => el("option", { value: rule }, `only in ${rule}`)));
    dialog.showModal();
    $("asking-note").focus();
  };
}

// Returns a function that opens the dialog for a rule, with a state.
function prepareChange(page, send) {
  const [dialog, limits, quota] = [$("change"), $("change-limits"), $("change-quota")];
  const showPeaks = { draw: null };
  let rule = null, asked = 0, timer = 0, toml = "";
  const state = () => dialog.querySelector("input[name=state]:checked").value;
  const isNew = () => rule.limits != null && limits.value.trim() !== rule.limits;
  // the last limit of the text, which a slider changes
  const last = () => {
    const start = Math.max(limits.value.lastIndexOf(";"), limits.value.lastIndexOf(",")) + 1;
    return { start, found: QUOTA.exec(limits.value.slice(start)) };
  };

  function showQuota() {
    const { found } = last();
    $("change-quota-part").hidden = !found || limits.disabled || rule.limits == null;
    if (!found) return;
    const value = Number(found[2]);
    if (value > Number(quota.max) || quota.dataset.rule !== rule.rule) quota.max = Math.max(10, value * 10);
    quota.dataset.rule = rule.rule;
    quota.value = value;
    setText($("change-quota-name"), `Quota per ${found[4].trim()}`);
    setText($("change-quota-now"), number(value));
  }

  function showState() {
    limits.disabled = state() !== "on";
    const hasEnd = state() !== "on" || isNew();
    $("change-for").parentElement.hidden = !hasEnd;
    $("change-apply").disabled = state() === rule.mode && !(state() === "on" && isNew());
    showQuota();
  }

  function wait() {
    showState();
    clearTimeout(timer);
    timer = setTimeout(preview, PREVIEW_AFTER);
  }

  async function preview() {
    const number_ = ++asked;
    let found;
    try {
      found = await post("preview", page.data().token, { rule: rule.rule, state: state(), limits: isNew() ? limits.value.trim() : rule.limits });
    } catch (error) {
      found = { mistake: error.message };
    }
    if (number_ !== asked || !dialog.open) return;
    setText($("change-mistake"), found.mistake ?? "");
    limits.setAttribute("aria-invalid", String(Boolean(found.mistake)));
    if (!found.mistake) showPreview(found);
    else $("change-apply").disabled = true;
  }

  function showPreview(found) {
    const hasSample = found.requests > 0;
    toml = found.toml ?? "";
    $("change-copy").hidden = !toml;
    setText($("preview-about"), hasSample
      ? `of the last ${span(found.seconds)}: ${plural(found.requests, "request")} of ${plural(found.clients, "client")}; took ${found.took.toFixed(1)} s`
      : "none: no recent decisions are known");
    $("preview-boxes").hidden = !hasSample;
    if (hasSample) {
      setText($("preview-now-limits"), rule.limits == null ? "" : `, ${rule.limits}`);
      setText($("preview-then-limits"), state() === "on" ? (rule.limits == null ? "" : `, ${limits.value.trim()}`) : `, ${state()}`);
      for (const part of ["now", "then"]) {
        setText($(`preview-${part}`), `${number(found[part].refused)} refused`);
        setText($(`preview-${part}-clients`), plural(found[part].clients, "client"));
      }
    }
    setText($("preview-warning"), found.warning ?? "");
    $("peaks").hidden = !(hasSample && found.peaks?.length && state() === "on");
    if ($("peaks").hidden) return;
    showPeaks.draw ??= peaksChart($("peaks"));
    showPeaks.draw(found.peaks, found.quota, `most requests of a client in one ${PERIODS[found.period] ?? "period"}`);
    $("peaks").setAttribute("aria-label", `Clients by the most requests of each in one period: ${found.peaks.filter(([peak]) => peak > found.quota).reduce((sum, [, clients]) => sum + clients, 0)} are above the quota of ${number(found.quota)}`);
  }

  limits.addEventListener("input", wait);
  quota.addEventListener("input", () => {
    const { start, found } = last();
    limits.value = limits.value.slice(0, start) + limits.value.slice(start).replace(QUOTA, `${found[1]}${quota.value}${found[3]}${found[4]}`);
    wait();
  });
  dialog.querySelectorAll("input[name=state]").forEach((one) => one.addEventListener("change", wait));
  $("change-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(toml);
      setText($("change-copy"), "Copied");
    } catch { // no permission, or not a secure context: the text is there to be copied
      $("change-toml").hidden = false;
      $("change-toml").value = toml;
      $("change-toml").select();
    }
  });
  dialog.querySelector("form").addEventListener("submit", () => {
    const body = { rule: rule.rule, for: Number($("change-for").value), note: $("change-note").value };
    const what = state() === "on" && isNew() ? { do: "limits", limits: limits.value.trim() } : { do: "switch", state: state() };
    send(dialog, $("change-error"), { ...what, ...body });
  });

  return (name, wanted) => {
    const data = page.data();
    rule = data.rules.find((one) => one.rule === name);
    if (rule == null) return;
    setText($("change-title"), rule.rule);
    setChildren($("change-about"), rule.match && el("code", {}, rule.match), rule.key && (rule.match ? ", key " : "key "), rule.key && el("code", {}, rule.key), rule.where && `, ${rule.where}`);
    dialog.querySelector(`input[value=${wanted ?? (rule.mode === "exempt" ? "on" : rule.mode)}]`).checked = true;
    limits.value = rule.limits ?? "";
    $("change-limits-part").hidden = rule.limits == null;
    for (const part of ["change-mistake", "change-error", "preview-warning"]) setText($(part), "");
    setText($("preview-about"), "…");
    $("preview-boxes").hidden = $("peaks").hidden = $("change-toml").hidden = $("change-copy").hidden = true;
    setText($("change-copy"), "Copy TOML");
    $("change-note").value = "";
    showDurations($("change-for"), data.at);
    setText($("change-apply"), `Apply to ${plural(data.processes, "process", "processes")}`);
    showState();
    dialog.showModal();
    preview();
  };
}

function prepareStop(page, send, change) {
  const dialog = $("stopping");
  const word = () => page.data().name || "stop";
  const worst = () => page.data().rules.filter((rule) => rule.mode === "on").sort((a, b) => b.minute[1] - a.minute[1])[0];
  const check = () => { $("stopping-apply").disabled = $("stopping-typed").value.trim() !== word(); };
  $("stopping-typed").addEventListener("input", check);
  $("stopping-one").addEventListener("click", () => {
    dialog.close();
    change(worst().rule, "shadow");
  });
  dialog.querySelector("form").addEventListener("submit", () => send(dialog, $("stopping-error"),
    { do: "switch", state: "shadow", rule: null, for: Number($("stopping-for").value), note: $("stopping-note").value }));
  return () => {
    const { rules, at } = page.data();
    const [rule, refused] = [worst(), rules.reduce((sum, one) => sum + one.minute[1], 0)];
    setText($("stopping-cost"), refused
      ? `In the last minute this would have admitted ${plural(refused, "more request", "more requests")}, ${percent(rule.minute[1], refused)} of them of ${rule.rule} (${rule.match ?? ""}).`
      : "In the last minute nothing was refused.");
    $("stopping-one-part").hidden = !(rule?.minute[1]);
    setText($("stopping-one"), `Shadow ${rule?.rule} instead …`);
    setText($("stopping-word"), word());
    setText($("stopping-error"), "");
    $("stopping-typed").value = $("stopping-note").value = "";
    check();
    showDurations($("stopping-for"), at);
    dialog.showModal();
    $("stopping-typed").focus();
  };
}
