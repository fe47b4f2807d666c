"use strict";
// Draws the charts of a report from the data beside it. It writes text only into canvases and text nodes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const style = () => getComputedStyle(document.documentElement);
  const color = (name) => style().getPropertyValue(name).trim();
  const faded = (value) => `${value}55`;
  const whole = (value) => (value == null ? "" : value.toLocaleString("en"));
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const moment = (time, step) => {
    const text = new Date(time * 1000).toISOString().replace("T", " ");
    return step === 0 ? text.slice(0, 16) : step >= 86400 || time % 86400 === 0 ? text.slice(5, 10) : text.slice(11, 16);
  };
  const span = (times) => [times[0], times.at(-1)].map((time) => moment(time, 0).slice(5)).join(" to ");
  const powers = [...Array(12).keys()].map((exponent) => 10 ** exponent);
  const charts = [];

  // What a legend shows at a point, and the sum of all points while the pointer is outside of the chart.
  const counted = (values) => (_, __, ___, index) => whole(index == null ? sum(values) : values[index] ?? 0);

  const axis = (more) => ({ stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 },
    ticks: { stroke: () => color("--line"), width: 1 }, ...more });

  const named = (label) => ({ label, labelSize: 20, labelFont: "12px system-ui, sans-serif" });

  function overTime(chart) {
    const times = chart.requests.map((_, index) => chart.start + index * data.step);
    const admitted = chart.requests.map((requests, index) => requests - chart.refused[index]);
    return {
      height: 220,
      options: {
        tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
        scales: { y: { range: (_, __, max) => [0, Math.max(1, max * 1.05)] } },
        axes: [axis({ space: 70, values: (_, ticks, __, ___, step) => ticks.map((tick) => moment(tick, step)) }), axis({ size: 60, ...named(`requests in ${data.every}`), values: (_, ticks) => ticks.map(whole) })],
        series: [
          { label: "UTC", value: (_, time) => (time == null ? span(times) : moment(time, 0)) },
          { label: "admitted", stroke: () => color("--admitted"), fill: () => faded(color("--admitted")), width: 1,
            value: counted(admitted) },
          { label: "refused", stroke: () => color("--refused"), fill: () => faded(color("--refused")), width: 1,
            value: counted(chart.refused) },
        ],
      },
      values: [times, chart.requests, chart.refused],  // stacked: what is admitted lies above what is refused
    };
  }

  function ofPeaks(chart) {
    const from = chart.bins.map((bin) => bin[0]);
    const position = from.findIndex((low) => low > chart.quota);
    const quota = (position < 0 ? from.length : position) - 0.5;
    const counts = (over) => chart.bins.map((bin, index) => (index > quota === over && bin[2] ? bin[2] : null));
    const label = (index) => {
      const bin = chart.bins[index];
      return bin[0] === bin[1] ? whole(bin[0]) : `${whole(bin[0])}-${whole(bin[1])}`;
    };
    const line = (u) => {
      const x = u.valToPos(quota, "x", true);
      u.ctx.save();
      u.ctx.strokeStyle = color("--refused");
      u.ctx.setLineDash([6, 4]);
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
      u.ctx.restore();
    };
    const bars = (name, over) => ({ label: name, stroke: () => color(over ? "--refused" : "--admitted"),
      fill: () => faded(color(over ? "--refused" : "--admitted")), width: 1, points: { show: false },
      paths: uPlot.paths.bars({ size: [0.8, 40] }), value: counted(counts(over)) });
    return {
      height: 220,
      options: {
        scales: { x: { time: false, range: [-0.75, Math.max(from.length, quota + 0.5) - 0.25] },
          y: { distr: 3, range: (_, __, max) => [0.6, Math.max(2, (max || 1) * 1.5)] } },
        axes: [axis({ incrs: [1, 2, 5, 10, 20, 50], space: 45, ...named(chart.unit), values: (_, ticks) => ticks.map((tick) => (from[tick] == null ? "" : whole(from[tick]))) }),
          axis({ size: 60, ...named("clients"), splits: (_, __, ___, max) => powers.filter((power) => power <= max), filter: (_, ticks) => ticks,
            values: (_, ticks) => ticks.map(whole) })],
        series: [{ label: "peak", value: (_, index) => (index == null ? "any" : label(index)) },
          bars("clients within the quota", false), bars("above it in a window", true)],
        hooks: { draw: [line] },
      },
      values: [from.map((_, index) => index), counts(false), counts(true)],
    };
  }

  for (const place of document.querySelectorAll("[data-chart]")) {
    const [kind, number] = place.dataset.chart.split("-");
    const { options, values, height } = kind === "time" ? overTime(data.rules[number]) : ofPeaks(data.peaks[number]);
    const size = () => ({ width: Math.max(240, place.clientWidth - 16), height });
    charts.push({ plot: new uPlot({ ...options, ...size() }, values, place), size });
  }

  addEventListener("resize", () => charts.forEach(({ plot, size }) => plot.setSize(size())));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(({ plot }) => plot.redraw(false, true)));
})();
