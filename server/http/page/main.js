// The page: reads snapshots as they come, and shows them.

import "./chat.js";
import { BLOCK_STATES, LineChart, drawBlocks } from "./charts.js";
import { History, amount, duration, percent } from "./figures.js";
import { ask, errorOf, events, useKey } from "./sse.js";
import { fillAnswers, fillBuckets } from "./tables.js";

const $ = (id) => document.getElementById(id);
const history = new History();
const charts = [
  new LineChart($("chart-tokens"), [
    { name: "generated", key: "one", of: (p) => p.generated },
    { name: "prefilled", key: "two", of: (p) => p.prefilled },
  ], amount),
  new LineChart($("chart-answers"), [
    { name: "running", key: "one", of: (p) => p.running },
    { name: "waiting", key: "two", of: (p) => p.waiting },
  ], amount),
  new LineChart($("chart-ttft"), [
    { name: "median", key: "one", of: (p) => p.ttft.half },
    { name: "95 %", key: "two", of: (p) => p.ttft.most },
  ], duration),
  new LineChart($("chart-itl"), [
    { name: "median", key: "one", of: (p) => p.itl.half },
    { name: "95 %", key: "two", of: (p) => p.itl.most },
  ], duration),
];
// The longest usual steps take a second or two.
const SILENT_S = 3;
const FIRST_WAIT_MS = 1000;
const MOST_WAIT_MS = 10000;
let latest = null;

function tile(id, value, unit = "") {
  const small = document.createElement("small");
  small.textContent = unit && ` ${unit}`;
  $(id).replaceChildren(value, small);
}

function showState(name, text = name) {
  $("state").className = `pill ${name}`;
  $("state").textContent = text;
}

function showTiles(snapshot, point) {
  const { load } = snapshot;
  tile("tile-running", amount(load.num_running));
  tile("tile-waiting", amount(load.num_waiting));
  tile("tile-generated", amount(point.generated), "tokens/s");
  tile("tile-prefilled", amount(point.prefilled), "tokens/s");
  tile("tile-ttft", duration(point.ttft.half));
  tile("tile-itl", duration(point.itl.half));
  tile("tile-kv", percent(load.num_referenced_blocks / load.num_total_blocks));
  tile("tile-padding", percent(point.padding));
}

function showBlocks({ block_states: text = "" }, total) {
  const states = Array.from(atob(text), (byte) => byte.charCodeAt(0));
  drawBlocks($("blocks"), states);
  const counts = BLOCK_STATES.map((_, state) => states.filter((s) => s === state).length);
  const words = ["empty", "cached", "cached, worth keeping", "held", "held by several"];
  const items = words.flatMap((word, i) => {
    if (counts[i] === 0 && i !== 0 && i !== 3) return [];
    const item = document.createElement("li");
    const mark = document.createElement("i");
    mark.className = `key-${BLOCK_STATES[i]}`;
    const count = document.createElement("b");
    count.textContent = amount(counts[i]);
    item.append(mark, count, ` ${word}`);
    return [item];
  });
  if (states.length < total) {
    const rest = document.createElement("li");
    rest.textContent = `the first ${amount(states.length)} of ${amount(total)} are shown`;
    items.push(rest);
  }
  $("blocks-legend").replaceChildren(...items);
  $("blocks").setAttribute("aria-label", $("blocks-legend").textContent);
}

function show() {
  if (latest === null) return;
  const { snapshot, point } = latest;
  const state = snapshot.state.replace("SERVER_STATE_", "").toLowerCase();
  showState(state, snapshot.is_simulated ? `${state}, a SIMULATION` : state);
  const silent = snapshot.details?.age_s ?? 0;
  const news = silent > SILENT_S ? `, no news of the engine for ${duration(silent)}` : "";
  $("uptime").textContent = `up ${duration(snapshot.uptime_s)}${news}`;
  showTiles(snapshot, point);
  for (const chart of charts) chart.draw(history.points);
  const details = snapshot.details;
  if (!details) return;
  showBlocks(details, snapshot.load.num_total_blocks);
  const { answers = [], buckets = [] } = details;
  const live = snapshot.load.num_running + snapshot.load.num_waiting;
  $("answers-count").textContent = answers.length < live ? `${answers.length} of ${live}` : "";
  fillAnswers($("answers"), answers);
  const used = buckets.filter((bucket) => Number(bucket.num_steps) > 0).length;
  $("buckets-count").textContent = `${used} of ${buckets.length} used`;
  fillBuckets($("buckets"), buckets);
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

async function watch() {
  const response = await ask("ui/events");
  $("key").hidden = response.status !== 401;
  if (!response.ok) {
    if (response.status === 401) $("key-input").focus();
    throw new Error(response.status === 401 ? "" : await errorOf(response));
  }
  notice("");
  showModel();
  for await (const snapshot of events(response)) {
    latest = { snapshot, point: history.push(snapshot) };
    show();
  }
  throw new Error("The server has ended the connection.");
}

async function showModel() {
  const response = await ask("v1/models");
  if (!response.ok) return;
  const [model] = (await response.json()).data;
  $("model").textContent = model.id;
  document.title = `${model.id} – omserve`;
}

async function run() {
  let wait = FIRST_WAIT_MS;
  for (;;) {
    const before = latest;
    try {
      await watch();
    } catch (error) {
      showState("lost", "not connected");
      notice(error.message);
    }
    if (latest !== before) wait = FIRST_WAIT_MS;
    if (!$("key").hidden) await keyGiven();
    else await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(2 * wait, MOST_WAIT_MS);
  }
}

function keyGiven() {
  return new Promise((resolve) => {
    $("key").addEventListener("submit", (event) => {
      event.preventDefault();
      useKey($("key-input").value.trim());
      $("key-input").value = "";
      resolve();
    }, { once: true });
  });
}

window.addEventListener("resize", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
run();
