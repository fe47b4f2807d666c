// The two charts: requests over time, and clients by their most requests in a period.
import { clock, number } from "./words.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");
const axis = (more) => ({ stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, ...more });
const TEXT_ROWS = 4; // of marks; more texts are left out
const isNarrow = () => innerWidth < 640;

function hatched(u) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const context = tile.getContext("2d");
  context.strokeStyle = color("--bad");
  context.lineWidth = 2;
  context.beginPath();
  for (const [x, y] of [[0, 8], [-2, 2], [6, 10]]) {
    context.moveTo(x, y);
    context.lineTo(x === 0 ? 8 : x + 4, x === 0 ? 0 : y - 4);
  }
  context.stroke();
  return u.ctx.createPattern(tile, "repeat");
}

const admitted = { stroke: () => color("--ok"), fill: () => `${color("--ok")}40`, width: 1 };
const refused = { stroke: () => color("--bad"), fill: hatched, width: 1.5 };

// `taken`: where the text of each line ends, of those that were drawn; a text goes below those that it would cover.
function line(u, x, name, text = "", taken = []) {
  if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color(name);
  ctx.setLineDash([5, 4]);
  ctx.beginPath();
  ctx.moveTo(x, u.bbox.top);
  ctx.lineTo(x, u.bbox.top + u.bbox.height);
  ctx.stroke();
  if (text) {
    ctx.textAlign = "left";
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    const [width, gap] = [ctx.measureText(text).width, 5 * devicePixelRatio];
    const start = x + gap + width > u.bbox.left + u.bbox.width ? x - gap - width : x + gap;
    const row = [...taken, -Infinity].findIndex((end) => end + gap < start);
    taken[row] = start + width;
    if (row < TEXT_ROWS) ctx.fillText(text, start, u.bbox.top + (13 + 15 * row) * devicePixelRatio);
  }
  ctx.restore();
}

// Draws again when the window or the color scheme changes. `size`: returns width and height.
function kept(plot, size) {
  addEventListener("resize", () => plot.setSize(size()));
  dark.addEventListener("change", () => plot.redraw(false, true));
  return plot;
}

// `pointed`: receives the row under the pointer, or null. Returns a function that shows rows and marks.
export function trafficChart(place, pointed) {
  let marks = [], rows = [];
  const size = () => ({ width: Math.max(200, place.clientWidth - 20), height: isNarrow() ? 170 : 210 });
  const plot = kept(new uPlot({
    ...size(),
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
    scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.12)] } },
    axes: [
      axis({ size: 26, space: () => (isNarrow() ? 90 : 110), values: (_, times) => times.map((time) => clock(time).slice(0, time % 60 ? 8 : 5)) }),
      axis({ size: 48, values: (_, values) => values.map((value) => (Number.isInteger(value) ? number(value) : "")) }),
    ],
    padding: [8, 32, 0, 0],
    series: [{}, { ...admitted, points: { show: false } }, { ...refused, points: { show: false } }],
    hooks: {
      draw: [(u) => {
        const taken = [];
        marks.forEach((mark) => line(u, u.valToPos(mark.at, "x", true), "--warn", `▲ ${mark.what}`, taken));
      }],
      setCursor: [(u) => pointed(u.cursor.idx == null ? null : rows[u.cursor.idx])],
    },
  }, [[], [], []], place), size);
  return (newRows, newMarks) => {
    [rows, marks] = [newRows, [...newMarks].sort((a, b) => a.at - b.at)];
    plot.setData([rows.map((row) => row[0]), rows.map((row) => row[1] + row[2]), rows.map((row) => row[2])]);
  };
}

// Returns a function that shows [most requests, clients] and the quota.
export function peaksChart(place) {
  let peaks = [], quota = 0, name = "";
  const edge = () => {
    const above = peaks.findIndex(([peak]) => peak > quota);
    return (above < 0 ? peaks.length : above) - 0.5;
  };
  const size = () => ({ width: Math.max(200, place.clientWidth || 600), height: 150 });
  const bars = (kind) => ({ ...kind, width: 1, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 36] }) });
  const plot = kept(new uPlot({
    ...size(),
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false, range: () => [-0.8, Math.max(1, peaks.length) - 0.2] }, y: { distr: 3, range: (_, __, most) => [0.6, Math.max(2, (most || 1) * 2)] } },
    axes: [
      axis({ splits: () => peaks.map((_, index) => index), filter: (u, ticks) => ticks.map((tick, index) => (index % Math.ceil((peaks.length * 32) / u.width) ? null : tick)),
        values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(peaks[tick][0]))), size: 30, label: () => name, labelSize: 16, labelFont: "12px system-ui", space: 10 }),
      axis({ size: 52, splits: (_, __, ___, most) => [1, 10, 100, 1000, 10000, 100000].filter((power) => power <= most), filter: (_, ticks) => ticks, values: (_, values) => values.map(number) }),
    ],
    series: [{}, bars(admitted), bars(refused)],
    hooks: { draw: [(u) => line(u, u.valToPos(edge(), "x", true), "--text")] },
  }, [[], [], []], place), size);
  return (newPeaks, newQuota, newName) => {
    [peaks, quota, name] = [newPeaks, newQuota, newName];
    const half = (isAbove) => peaks.map(([, clients], index) => (index > edge() === isAbove ? clients : null));
    plot.setSize(size());
    plot.setData([peaks.map((_, index) => index), half(false), half(true)]);
  };
}
