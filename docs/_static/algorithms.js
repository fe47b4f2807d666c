// The algorithms of ratelimit_mw, drawn: how full each bucket is over time, for requests that the reader draws.
// Times are whole microseconds, as in the package, and every request costs one unit. `docs/from_code.py` wrote
// what Python decides for the same requests; a test compares both.
(() => {
  "use strict";
  const SECOND = 1_000_000;
  const gcd = (a, b) => (b ? gcd(b, a % b) : a);

  // Each algorithm: a new state, the state at a later instant without requests, whether one more unit fits, the state
  // after it, how many units fit, and how full it is (1: the next unit is refused).
  const window_ = {
    fixed_window: ({ quota, window }) => ({
      start: { count: 0, since: null },
      at: (s, now) => (s.since !== null && now - s.since < window ? s : { count: 0, since: null }),
      fits: (s) => s.count < quota,
      take: (s, now) => ({ count: s.count + 1, since: s.since ?? now }),
      room: (s) => quota - s.count,
      full: (s) => s.count / quota,
    }),
    sliding_window_counter: ({ quota, window }) => {
      const old = (s, now) => (s.since === null ? 0 : Math.floor((s.oldest * (s.since + window - now - 1)) / window));
      return {
        start: { newest: 0, oldest: 0, since: null },
        at: (s, now) => {
          if (s.since === null || now - s.since >= 2 * window) return { newest: 0, oldest: 0, since: null };
          if (now - s.since < window) return s;
          return { newest: 0, oldest: s.newest, since: s.since + window };
        },
        fits: (s, now) => s.newest + old(s, now) < quota,
        take: (s, now) => ({ ...s, newest: s.newest + 1, since: s.since ?? now }),
        room: (s, now) => Math.max(0, quota - s.newest - old(s, now)),
        full: (s, now) => (s.newest + old(s, now)) / quota,
      };
    },
    sliding_window_log: ({ quota, window }) => ({
      start: [],
      at: (s, now) => s.filter((instant) => instant > now - window),
      fits: (s) => s.length < quota,
      take: (s, now) => [...s, now],
      room: (s) => quota - s.length,
      full: (s) => s.length / quota,
    }),
  };
  const bucket = ({ quota, window, burst }) => {
    const shared = gcd(quota, window);
    const [drain, unit] = [quota / shared, window / shared];
    const most = burst * unit;
    return {
      start: { level: 0, updated: 0 },
      at: (s, now) => ({ level: Math.max(0, s.level - (now - s.updated) * drain), updated: now }),
      fits: (s) => s.level + unit <= most,
      take: (s, now) => ({ level: s.level + unit, updated: now }),
      room: (s) => Math.floor((most - s.level) / unit),
      full: (s) => s.level / most,
    };
  };
  const smooth = ({ quota, window }) => {
    const shared = gcd(quota, window);
    const [drain, unit] = [quota / shared, window / shared];
    const most = SECOND * drain; // a second of idle time is stored
    return {
      start: { wait: 0, stored: most, updated: 0 },
      at: (s, now) => {
        const wait = s.wait - (now - s.updated) * drain;
        if (wait > 0) return { wait, stored: Math.max(s.stored, -wait), updated: now };
        return { wait: 0, stored: Math.min(most, Math.max(0, s.stored) - wait), updated: now };
      },
      fits: (s) => s.wait === 0,
      take: (s, now) => {
        const stored = s.stored - unit;
        return { wait: s.wait + unit - Math.max(0, s.stored) + Math.max(0, stored), stored, updated: now };
      },
      room: (s) => (s.wait ? 0 : Math.floor(s.stored / unit) + 1),
      full: (s) => (most - Math.max(0, s.stored) + s.wait) / (most + unit),
    };
  };
  const ALGORITHMS = { ...window_, token_bucket: bucket, gcra: bucket, leaky_bucket: bucket, smooth };

  // What an algorithm decides on requests at these instants: [admitted, units left, microseconds until the next one
  // passes], and its state after each.
  function replay(name, limit, instants) {
    const algorithm = ALGORITHMS[name](limit);
    let state = algorithm.start;
    return instants.map((now) => {
      state = algorithm.at(state, now);
      const admitted = algorithm.fits(state, now);
      if (admitted) state = algorithm.take(state, now);
      return { now, state, answer: [admitted, algorithm.room(state, now), admitted ? 0 : retry(algorithm, state, now)] };
    });
  }

  function retry(algorithm, state, now) {
    const passes = (later) => algorithm.fits(algorithm.at(state, later), later);
    let [refused, admitted] = [now, now + 1];
    while (!passes(admitted)) [refused, admitted] = [admitted, now + 2 * (admitted - now)];
    while (admitted - refused > 1) {
      const middle = Math.floor((refused + admitted) / 2);
      if (passes(middle)) admitted = middle;
      else refused = middle;
    }
    return admitted - now;
  }

  // How many of Python's answers this page gives, too.
  function agreement(scenario) {
    let [same, all] = [0, 0];
    for (const [name, answers] of Object.entries(scenario.answers)) {
      const mine = replay(name, scenario.limit, scenario.instants);
      answers.forEach((answer, index) => {
        all += 1;
        same += JSON.stringify(answer) === JSON.stringify(mine[index].answer) ? 1 : 0;
      });
    }
    return [same, all];
  }

  globalThis.ratelimitAlgorithms = { replay, agreement, names: Object.keys(ALGORITHMS) };
  if (typeof document === "undefined") return;

  const LENGTH = 30 * SECOND;
  const [WIDTH, HEIGHT, STRIP] = [720, 84, 36];
  const x = (instant) => (instant / LENGTH) * WIDTH;
  const root = document.getElementById("algorithms");
  const scenarios = globalThis.ratelimitAnswers;
  let limit = { ...scenarios[0].limit };
  let instants = [...scenarios[0].instants];

  const make = (tag, attributes = {}, ...children) => {
    const drawing = ["svg", "line", "path", "circle", "rect"].includes(tag);
    const node = drawing ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const frame = (height, label) =>
    make("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" });

  function curve(name, decided) {
    const algorithm = ALGORITHMS[name](limit);
    const y = (full) => HEIGHT - 16 - Math.min(1.15, full) * (HEIGHT - 34);
    let [state, next, path] = [algorithm.start, 0, ""];
    for (let now = 0; now <= LENGTH; now += LENGTH / 600) {
      while (next < decided.length && decided[next].now <= now) {
        const one = decided[next++];
        const before = algorithm.at(state, one.now);
        path += `L${x(one.now)} ${y(algorithm.full(before, one.now))}`;
        state = one.state;
        path += `L${x(one.now)} ${y(algorithm.full(state, one.now))}`;
      }
      path += `L${x(now)} ${y(algorithm.full(algorithm.at(state, now), now))}`;
    }
    return [path.replace("L", "M"), y(1)];
  }

  function chart(name) {
    const decided = replay(name, limit, instants);
    const admitted = decided.filter((one) => one.answer[0]).map((one) => one.now);
    const most = Math.max(0, ...admitted.map((at) => admitted.filter((one) => one >= at && one < at + limit.window).length));
    const said = `${admitted.length} of ${instants.length} admitted, at most ${most} within ${limit.window / SECOND} s`;
    const svg = frame(HEIGHT, `${name}: ${said}`);
    const [path, top] = curve(name, decided);
    svg.append(make("line", { class: "top", x1: 0, x2: WIDTH, y1: top, y2: top }), make("path", { class: "level", d: path }));
    for (const { now, answer } of decided) {
      const place = { cx: x(now), cy: HEIGHT - 6, r: 4, class: answer[0] ? "admitted" : "refused" };
      svg.append(make("circle", place));
    }
    return make("figure", {}, make("figcaption", {}, make("code", {}, name), ` ${said}`), svg);
  }

  function marks() {
    const drawn = [];
    for (let second = 0; second <= 30; second += 5)
      drawn.push(make("line", { class: "top", x1: x(second * SECOND), x2: x(second * SECOND), y1: 0, y2: STRIP }));
    for (const now of instants) drawn.push(make("rect", { x: x(now) - 1.5, y: 4, width: 3, height: STRIP - 8 }));
    return drawn;
  }

  function drawable(svg) {
    const place = (event) => {
      const box = svg.getBoundingClientRect();
      const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      return Math.round((part * LENGTH) / (SECOND / 5)) * (SECOND / 5); // every fifth of a second
    };
    let last;
    const draw = (event) => {
      const at = place(event);
      if (at === last || instants.length >= 150) return;
      if (last === null && instants.includes(at)) instants = instants.filter((one) => one !== at);
      else instants = [...instants, at].sort((a, b) => a - b);
      last = at;
      show();
    };
    svg.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      last = null;
      draw(event);
      addEventListener("pointermove", draw);
      addEventListener("pointerup", () => removeEventListener("pointermove", draw), { once: true });
    });
    return svg;
  }

  const field = (label, read, write, most) => {
    const input = make("input", { type: "number", min: 1, max: most, value: read() });
    input.addEventListener("change", () => {
      write(Math.min(most, Math.max(1, Math.round(Number(input.value)) || 1)));
      show();
    });
    return make("label", {}, `${label} `, input);
  };

  const controls = make("div", { class: "controls" });
  const strip = drawable(frame(STRIP, "The requests. Select a place to add one, or to remove it."));
  strip.classList.add("strip");
  const charts = make("div");
  root.append(controls, strip, charts);

  function panel() {
    const select = make("select", { "aria-label": "Traffic" });
    scenarios.forEach((one, index) => one.shown && select.append(make("option", { value: index }, one.name)));
    select.append(make("option", { value: "none" }, "none: draw it"));
    select.addEventListener("change", () => {
      const chosen = scenarios[select.value];
      instants = chosen ? [...chosen.instants] : [];
      if (chosen) limit = { ...chosen.limit };
      controls.replaceChildren(...panel());
      controls.querySelector("select").value = select.value;
      show();
    });
    const second = (name) => [() => limit[name] / SECOND, (value) => (limit[name] = value * SECOND)];
    const units = (name) => [() => limit[name], (value) => (limit[name] = value)];
    return [
      make("label", {}, "Traffic ", select),
      field("quota", ...units("quota"), 50),
      field("per seconds", ...second("window"), 30),
      field("burst", ...units("burst"), 50),
    ];
  }

  function show() {
    strip.replaceChildren(...marks());
    charts.replaceChildren(...Object.keys(ALGORITHMS).map(chart));
  }

  controls.append(...panel());
  show();
  const counts = scenarios.map(agreement);
  const [same, all] = counts.reduce(([a, b], [c, d]) => [a + c, b + d]);
  root.dataset.same = same;
  root.dataset.all = all;
  root.append(make("p", {}, `This page gives ${same} of the ${all} answers that Python gave to stored requests.`));
})();
