// The page of cachecd: draws status.json and history.json of its own server. It computes nothing besides
// differences over time. All text of a document is set as textContent, because a bucket, a job or a store may
// have chosen it.
"use strict";

const LIVE = 2000; // milliseconds between two requests
const RINGS = { seconds: { kept: 600, gap: 10 }, minutes: { kept: 2880, gap: 300 }, epochs: { kept: 1000, gap: Infinity } };
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const TICKS = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400]; // seconds
const POWERS = Array.from({ length: 51 }, (_, exponent) => 2 ** exponent);
const MOST_LINES = 12; // of a plot; its table has the others

// --- texts

const digits = (value, most) => value.toLocaleString("en", { maximumFractionDigits: most });
const count = (value) => digits(value, 0);
const percent = (value) => `${digits(100 * value, value > 0 && value < 0.1 ? 1 : 0)}\u00a0%`;
const cores = (value) => digits(value, 2);

function scaled(value, base, units) {
  let unit = 0;
  while (Math.abs(value) >= base && unit < units.length - 1) { value /= base; unit += 1; }
  return `${digits(value, unit && Math.abs(value) < 100 ? 1 : 0)}\u00a0${units[unit]}`;
}
const bytes = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const rate = (value) => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s"]);

function duration(seconds) {
  if (seconds < 60) return `${digits(seconds, seconds < 10 ? 1 : 0)}\u00a0s`;
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, length]) => seconds >= length);
  return parts.slice(first, first + 2)
    .map(([unit, length], place) => `${Math.floor((place ? seconds % parts[first][1] : seconds) / length)}\u00a0${unit}`)
    .join("\u00a0");
}
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
const minute = (seconds) => clock(seconds).slice(0, 5);
const day = (seconds) => new Date(1000 * seconds).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
const severity = (share) => (share > 0.3 ? "bad" : share > 0.1 ? "warn" : "good");

// --- elements

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function bar(share, className) {
  const whole = element("span", undefined, "bar");
  const part = element("span", undefined, className);
  part.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  whole.setAttribute("aria-hidden", "true");
  whole.append(part);
  return whole;
}

// A cell is a text, a number with its format, or an element.
function table(caption, columns, rows) {
  const made = element("table");
  made.append(element("caption", caption));
  const head = made.createTHead().insertRow();
  for (const [title, kind] of columns) {
    const cell = element("th", title, kind);
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, place) => {
      const cell = element(place ? "td" : "th", undefined, columns[place][1]);
      if (!place) cell.scope = "row";
      if (value instanceof Node) cell.append(value); else cell.textContent = value;
      line.append(cell);
    });
  }
  return made;
}

function show(id, caption, columns, rows, none) {
  const box = document.getElementById(id);
  box.tabIndex = 0; // so that the keyboard can scroll it
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", caption);
  box.replaceChildren(rows.length ? table(caption, columns, rows) : element("p", none, "note"));
}

// --- the history: columns of each ring, with null where a sample lacks a series

const history = {};
for (const ring of Object.keys(RINGS)) history[ring] = { times: [], columns: new Map() };

function extend(ring, runs) {
  const { times, columns } = history[ring];
  const { kept, gap } = RINGS[ring];
  const push = (time, keys, row) => {
    for (const key of keys) if (!columns.has(key)) columns.set(key, new Array(times.length).fill(null));
    times.push(time);
    for (const column of columns.values()) column.push(null);
    keys.forEach((key, place) => { columns.get(key)[times.length - 1] = row[place + 1]; });
  };
  for (const { keys, rows } of runs) {
    for (const row of rows) {
      const last = times[times.length - 1];
      if (last !== undefined && row[0] <= last) continue;
      if (last !== undefined && row[0] - last > gap) push(last + 1, [], []); // the line is interrupted
      push(row[0], keys, row);
    }
  }
  const old = times.length - kept;
  if (old <= 0) return;
  times.splice(0, old);
  for (const [key, column] of columns) {
    column.splice(0, old);
    if (column.every((value) => value === null)) columns.delete(key);
  }
}

// Series whose key is BEFORE, one of the names, and AFTER.
function chosen(data, before, field, after = "") {
  return [...data.columns]
    .filter(([key]) => key.startsWith(before) && key.split("/")[2] === field && (!after || key.split("/")[3]))
    .map(([key, values]) => {
      const [, dataset, , ...rest] = key.split("/");
      return { label: rest.length ? `${dataset} ${rest.join("/")}` : dataset, values };
    });
}

// The growth per second, over at least `period` seconds. A decrease is a restart.
function growth({ label, values }, times, period) {
  let first = 0; // the latest sample that is at least one period old
  return {
    label,
    values: values.map((value, place) => {
      while (first + 1 < place && times[place] - times[first + 1] >= period) first += 1;
      const before = values[first];
      const isLong = place > first && times[place] - times[first] >= 0.9 * period;
      const known = isLong && value !== null && before !== null && value >= before;
      return known ? (value - before) / (times[place] - times[first]) : null;
    }),
  };
}

const single = (data, key, label) => ({ label, values: data.columns.get(key) ?? data.times.map(() => null) });

function epochs() {
  const { times, columns } = history.epochs;
  const jobs = [...columns].filter(([key]) => key.startsWith("job/") && key.split("/")[2] === "epoch");
  const rows = new Map(); // epoch -> label -> bytes
  for (const [key, numbers] of jobs) {
    const [, dataset, , ...job] = key.split("/");
    const sizes = columns.get(`dataset/${dataset}/data_bytes`) ?? [];
    numbers.forEach((number, place) => {
      if (number === null || number === numbers[place - 1]) return;
      if (!rows.has(number)) rows.set(number, new Map());
      rows.get(number).set(`${dataset} ${job.join("/")}`, sizes[place] ?? null);
    });
  }
  const numbers = [...rows.keys()].sort((a, b) => a - b);
  const labels = [...new Set([...rows.values()].flatMap((row) => [...row.keys()]))].sort();
  const limit = times.length ? columns.get("cache/limit")[times.length - 1] : null;
  const lines = labels.map((label) => ({ label, values: numbers.map((n) => rows.get(n).get(label) ?? null) }));
  return { times: numbers, lines: lines.length ? [...lines, { label: "limit", values: numbers.map(() => limit) }] : [] };
}

// --- plots

const over = (make) => (data) => ({ times: data.times, lines: make(data) });
const PLOTS = [
  { title: "Waiting, by job", note: "The process of the job that waits most: share of the last minute.", format: percent, most: 1,
    make: over((data) => chosen(data, "job/", "wait_share", "job")) },
  { title: "Queue of batches, by job", note: "The emptiest queue of the job. A dip without waiting is harmless.", format: percent, most: 1,
    make: over((data) => chosen(data, "job/", "queue", "job")) },
  { title: "Growth of each epoch", note: "Bytes cached when the epoch began, and cache.limit.", format: bytes, least: 1 << 20, powers: true, byEpoch: true, make: epochs },
  { title: "Cached of the source", note: "Share of the listed units that were cached at any time.", format: percent, most: 1,
    make: over((data) => chosen(data, "dataset/", "coverage")) },
  { title: "Disk", note: "Allocated and reserved bytes, and cache.limit.", format: bytes, least: 1 << 20, powers: true,
    make: over((data) => ["used", "reserved", "limit"].map((name) => single(data, `cache/${name}`, name))) },
  { title: "Fetched", note: "Bytes in a second.", format: rate, least: 1e6, make: over((data) => chosen(data, "dataset/", "bytes_per_second")) },
  { title: "Ingest: processors by stage", note: "Processors that all workers use.", format: cores,
    make: over((data) => chosen(data, "dataset/", "cpu_s", "stage").map((each) => growth(each, data.times, 10))) },
  { title: "Ingest: workers by stage, with waiting", note: "Workers that are in a stage, at work or waiting.", format: cores,
    make: over((data) => chosen(data, "dataset/", "wall_s", "stage").map((each) => growth(each, data.times, 10))) },
  { title: "Fetching paused, by reason", note: "Share of the time in which nothing was fetched.", format: percent, most: 1,
    make: over((data) => [...data.columns].filter(([key]) => key.startsWith("cache/paused_s/"))
      .map(([key, values]) => growth({ label: key.split("/")[2], values }, data.times, 10))) },
  { title: "Evictions", note: "Shards that rotation retired in a minute.", format: cores,
    make: over((data) => chosen(data, "dataset/", "evicted_shards").map((each) => growth(each, data.times, 60))
      .map(({ label, values }) => ({ label, values: values.map((value) => (value === null ? null : 60 * value)) }))) },
];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let range = 600;

class Plot {
  constructor(spec, number) {
    this.spec = spec;
    this.figure = element("figure");
    const caption = element("figcaption");
    caption.append(element("h3", spec.title), element("p", spec.note, "note"));
    this.box = element("div", undefined, "plot");
    this.box.id = `plot-${number}`;
    this.box.setAttribute("role", "img");
    this.details = element("details");
    this.rows = element("div");
    this.details.append(element("summary", `${spec.title} as a table`), this.rows);
    this.details.addEventListener("toggle", () => this.fill());
    this.figure.append(caption, this.box, this.details);
    this.drawn = "";
  }

  draw() {
    const { spec } = this;
    const data = range <= 600 ? history.seconds : history.minutes;
    const { times, lines } = spec.make(data);
    const from = spec.byEpoch ? 0 : times.findIndex((time) => time >= times[times.length - 1] - range);
    this.times = times.slice(Math.max(0, from));
    this.last = times[times.length - 1];
    this.lines = lines
      .map(({ label, values }) => ({ label, values: values.slice(Math.max(0, from)) }))
      .filter(({ values }) => values.some((value) => value !== null));
    this.box.setAttribute("aria-label", this.summary());
    this.fill();
    const shape = JSON.stringify([this.lines.map((line) => line.label), this.box.clientWidth]);
    if (!this.lines.length || !this.box.clientWidth) {
      this.drawn = "";
      this.box.replaceChildren(element("p", "No data yet.", "none"));
      return;
    }
    const shown = this.lines.slice(0, MOST_LINES);
    const columns = [this.times, ...shown.map((line) => line.values)];
    if (shape === this.drawn) {
      this.plot.setData(columns);
    } else {
      this.drawn = shape;
      this.box.replaceChildren();
      this.plot = new uPlot(this.options(shown), columns, this.box);
    }
    const { plot } = this;
    const last = this.times.length - 1;
    // Where nobody points at, the legend shows the last values. uPlot clears it after this function.
    requestAnimationFrame(() => { if ((plot.cursor.left ?? -1) < 0) plot.setLegend({ idx: last }); });
  }

  options(lines) {
    const { spec } = this;
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 } };
    const value = (_, raw) => (raw === null || raw === undefined ? "–" : spec.format(raw));
    const top = (high) => spec.most ?? Math.max(1.1 * high, spec.least ?? 1);
    const time = (_, ticks) => ticks.map((tick) => (range > 86400 ? `${day(tick)}\n${minute(tick)}` : minute(tick)));
    return {
      width: this.box.clientWidth,
      height: 200,
      scales: {
        x: spec.byEpoch ? { time: false, range: (_, low, high) => [low, Math.max(high, low + 1)] } : { range: () => [this.last - range, this.last] },
        y: { range: (_, low, high) => [0, top(high)] },
      },
      axes: [
        spec.byEpoch ? { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] } : { ...axis, values: time, incrs: TICKS },
        { ...axis, size: 74, values: (_, ticks) => ticks.map(spec.format), ...(spec.powers ? { incrs: POWERS } : {}) },
      ],
      cursor: { drag: { x: false, y: false } },
      series: [
        spec.byEpoch ? { label: "epoch", value: (_, raw) => raw ?? "–" } : { label: "time", value: (_, raw) => (raw ? clock(raw) : "–") },
        ...lines.map(({ label }, place) => ({
          label,
          value,
          width: 2,
          stroke: label === "limit" ? colour("--bad") : colour(`--c${place % 8}`),
          dash: label === "limit" ? [6, 4] : DASHES[Math.floor(place / 8) % DASHES.length],
          points: { show: Boolean(spec.byEpoch) && label !== "limit", size: 7 },
          spanGaps: Boolean(spec.byEpoch),
        })),
      ],
    };
  }

  summary() {
    const last = ({ label, values }) => {
      const value = values.findLast((each) => each !== null);
      return `${label} ${this.spec.format(value)}`;
    };
    const now = this.lines.slice(0, MOST_LINES).map(last).join(", ");
    return now ? `${this.spec.title}. Last: ${now}. The table below has all values.` : `${this.spec.title}: no data yet.`;
  }

  fill() {
    if (!this.details.open) return;
    const step = Math.max(1, Math.ceil(this.times.length / 60)); // a table of 60 rows, the newest first
    const places = this.times.map((_, place) => place).filter((place) => (this.times.length - 1 - place) % step === 0).reverse();
    const { byEpoch, format, title } = this.spec;
    const columns = [[byEpoch ? "epoch" : "time", ""], ...this.lines.map(({ label }) => [label, "number"])];
    const rows = places.map((place) => [
      byEpoch ? count(this.times[place]) : clock(this.times[place]),
      ...this.lines.map(({ values }) => (values[place] === null ? "–" : format(values[place]))),
    ]);
    this.rows.replaceChildren(rows.length ? table(title, columns, rows) : element("p", "No data yet.", "note"));
  }
}

const plots = PLOTS.map((spec, number) => new Plot(spec, number));
document.getElementById("plots").append(...plots.map((plot) => plot.figure));
const draw = () => plots.forEach((plot) => plot.draw());
const redraw = () => { for (const plot of plots) plot.drawn = ""; draw(); };

// --- the status document

function tile(title, value, more, className) {
  const box = element("div");
  box.append(element("dt", title), element("dd", value, `large ${className ?? ""}`), element("dd", more, "note"));
  return box;
}

function tiles({ cache, datasets, leases, trainers, sampler }) {
  const all = Object.values(datasets);
  const sum = (field) => all.reduce((total, each) => total + each[field], 0);
  const worst = trainers[0];
  const held = leases.filter((each) => each.held).length;
  const skipped = all.reduce((total, each) => total + each.skipped.units + each.skipped.records, 0);
  const [least] = Object.entries(datasets).sort(([, a], [, b]) => a.coverage - b.coverage);
  document.getElementById("tiles").replaceChildren(
    worst
      ? tile("Training waits", percent(worst.wait_share), `${worst.job}, rank ${worst.rank}, last minute`, severity(worst.wait_share))
      : tile("Training waits", "–", "no trainer reports"),
    tile("Disk", bytes(cache.used), `of ${bytes(cache.limit)} (${percent(cache.used / cache.limit)})`),
    tile("Cached of the source", least ? percent(least[1].coverage) : "–", least ? `of ${least[0]}, ${count(least[1].units)} units` : ""),
    tile("Fetching", rate(sum("bytes_per_second")), `${bytes(cache.fetched_bytes)} in all runs`),
    tile("Evicted", count(sum("evicted_shards")), "shards since the start"),
    tile("Leases", count(leases.length), `${count(held)} held by a process`),
    tile("Skipped", count(skipped), "units and records", skipped ? "warn" : ""),
    tile("Workers", `${sampler.alive} of ${sampler.workers}`, `${sampler.restarts} replaced`, sampler.alive < sampler.workers ? "bad" : ""),
  );
}

function problems({ cache, datasets, complaints, sampler }) {
  const found = [];
  const add = (text, fails) => found.push(element("li", text, fails ? "fails" : ""));
  if (cache.stopped) add(`The disk stops fetching: ${cache.stopped}`, true);
  if (cache.resting) add(`Fetching is paused: ${cache.resting}`);
  if (cache.corrupt_shards) add(`Damaged shards since the start: ${cache.corrupt_shards}`);
  if (sampler.restarts) add(`Workers that were replaced: ${sampler.restarts}. The last ended: ${sampler.last_end}`);
  for (const [subject, reason] of Object.entries(complaints)) add(`${subject} fails: ${reason}`, true);
  for (const [name, each] of Object.entries(datasets)) {
    if (each.stopped) add(`${name}: fetching stopped ${duration(each.stopped_for_s)} ago: ${each.stopped}`, true);
    if (each.waits_for) add(`${name} waits: ${each.waits_for}`);
    if (each.rotation_waits) add(`${name}: nothing rotates: ${each.rotation_waits}`);
    if (each.held_back) add(each.held_back);
    if (each.listing.failed) add(`${name}: the listing failed: ${each.listing.failed}`, true);
    if (each.listing.warning) add(`${name}: ${each.listing.warning}`);
    for (const value of each.from_next_generation) add(`${name}: takes effect with the next generation: ${value}`);
  }
  if (!found.length) found.push(element("li", "Nothing fails or waits.", "fine"));
  document.getElementById("problems").replaceChildren(...found);
}

function waiting(trainers) {
  const rows = trainers.map((each) => {
    const cell = element("span");
    cell.append(bar(each.wait_share, severity(each.wait_share)), element("span", percent(each.wait_share)));
    const stages = Object.entries(each.stages_s).sort((a, b) => b[1] - a[1]).filter(([, seconds]) => seconds > 0).slice(0, 3);
    const spent = stages.map(([stage, seconds]) => `${stage} ${duration(seconds)}`).join(", ");
    const queue = each.queue === null ? "–" : percent(each.queue);
    return [each.job, count(each.rank), cell, queue, count(each.epoch), count(each.steps), spent || each.blind || "–", each.reader, duration(each.age_s)];
  });
  const columns = [["job", "text"], ["rank", "number"], ["waited", ""], ["queue", "number"], ["epoch", "number"],
    ["steps", "number"], ["waited for", "text"], ["reader", ""], ["last report", "number"]];
  show("ranks", "Waiting by rank", columns, rows, "No trainer reports. A trainer appears here when its loop reads batches.");
}

function tables({ datasets, leases }) {
  const ages = [...leases].sort((a, b) => b.age_s - a.age_s).map((each) => [
    each.dataset, each.job, count(each.epoch), count(each.records),
    each.held ? `held by ${each.held_by.length} of ${each.ranks} ranks` : "granted",
    duration(each.age_s), each.retired_bytes ? bytes(each.retired_bytes) : "–",
  ]);
  show("leases", "Leases, the oldest first", [["dataset", ""], ["job", "text"], ["epoch", "number"], ["records", "number"],
    ["state", ""], ["age", "number"], ["keeps retired", "number"]], ages, "No job holds a set.");
  const rows = Object.entries(datasets).map(([name, each]) => {
    const seen = element("span");
    seen.append(bar(each.coverage), element("span", percent(each.coverage)));
    const state = [each.pinned && "pinned", each.whole && "whole", each.full && "full", !each.listed && "still listing"].filter(Boolean).join(", ");
    return [name, state || "growing", seen, count(each.records), bytes(each.data_bytes), bytes(each.share), rate(each.bytes_per_second),
      count(each.evicted_shards), each.epoch || "–"];
  });
  show("datasets", "Datasets", [["dataset", ""], ["state", ""], ["of the source", ""], ["records", "number"], ["next set", "number"],
    ["share of the limit", "number"], ["fetching", "number"], ["evicted shards", "number"], ["an epoch", "text"]], rows, "No dataset.");
  const stages = Object.entries(datasets).flatMap(([name, each]) => Object.entries(each.ingest).map(([stage, work]) => [
    name, stage, duration(work.cpu_s), duration(work.wall_s), count(work.records),
    work.records ? `${digits((1000 * work.cpu_s) / work.records, 3)} ms` : "–",
  ]));
  show("ingest", "Ingest by stage", [["dataset", ""], ["stage", ""], ["CPU", "number"], ["time, with waiting", "number"],
    ["records", "number"], ["CPU of a record", "number"]], stages, "Nothing was fetched since the start.");
  const skips = Object.entries(datasets).flatMap(([name, each]) => Object.entries(each.skipped.reasons).map(([reason, skip]) => [
    name, reason, count(skip.units), count(skip.records), skip.examples.join(", ") || "–",
  ]));
  show("skipped", "Skipped, and why", [["dataset", ""], ["reason", "text"], ["units", "number"], ["records", "number"],
    ["examples", "text"]], skips, "Nothing was skipped.");
}

function update(status) {
  const { daemon, cache } = status;
  document.getElementById("about").textContent =
    `${cache.dir}, up ${duration(daemon.uptime_s)}, pid ${daemon.pid}${daemon.offline ? ", offline" : ""}`;
  tiles(status);
  problems(status);
  waiting(status.trainers);
  tables(status);
}

// --- live

const get = async (path) => {
  const reply = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!reply.ok) throw new Error((await reply.text()).trim() || `status ${reply.status}`);
  return reply.json();
};

function link(text, className) {
  const box = document.getElementById("link");
  if (box.textContent === text) return; // a screen reader announces a change only
  box.textContent = text;
  box.className = className;
}

async function refresh() {
  try {
    const newest = Math.max(0, ...Object.values(history).map(({ times }) => times[times.length - 1] ?? 0));
    const [status, news] = await Promise.all([get("status.json"), get(newest ? `history.json?since=${newest}` : "history.json")]);
    for (const ring of Object.keys(RINGS)) extend(ring, news[ring]);
    update(status);
    draw();
    link("live", "good");
  } catch (error) {
    link(`no answer: ${error.message}. These figures are old.`, "bad");
  }
}

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, LIVE);
}

document.getElementById("ranges").addEventListener("change", (event) => { range = Number(event.target.value); draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(draw, 100); });
live();
