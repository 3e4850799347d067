// What the page reads: the usage stream, the pages of the admin port, and rates between two metrics pages.
const EVERY = 2000, QUIET = 10000, WINDOW = 6, KEPT = 150, PATIENCE = 10000, HEARTBEAT = 45000;
const at = id => document.getElementById(id);
let token = sessionStorage.getItem("penstock-token") || "";
// The metrics pages of the last ten seconds, the oldest first.
const pages = [];

// A response that is none of data; status 0 is no response at all.
class Refused extends Error {
  constructor(path, status, text) {
    super(text || path + " returned " + status);
    this.status = status;
  }
}
async function open(path, signal) {
  const headers = token ? { authorization: "Bearer " + token } : {};
  let response;
  try { response = await fetch(path, { headers, cache: "no-store", signal }); } catch (error) { throw new Refused(path, 0, error.message); }
  if (response.ok) return response;
  let text = "";
  try { text = (await response.json()).error.message; } catch { /* the status says enough */ }
  throw new Refused(path, response.status, text);
}
async function read(path) {
  const response = await open(path, AbortSignal.timeout(PATIENCE));
  return response.text().catch(error => { throw new Refused(path, 0, error.message); });
}
const readJson = async path => JSON.parse(await read(path));

// Calls `show` with each event until the stream ends. A stream that is silent for too long is given up.
async function follow(path, stop, show) {
  const silent = new AbortController();
  let timer = 0;
  const restart = () => { clearTimeout(timer); timer = setTimeout(() => silent.abort(), HEARTBEAT); };
  restart();
  try {
    const response = await open(path, AbortSignal.any([stop, silent.signal]));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      restart();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      // Each event is the whole state: only the newest counts.
      const last = events.filter(event => event.startsWith("data: ")).pop();
      if (last) show(JSON.parse(last.slice(6)));
    }
  } finally {
    clearTimeout(timer);
  }
}
function parse(text) {
  const page = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found || found[1].startsWith("gen_ai_")) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[name] = value.replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
    if (!page.has(found[1])) page.set(found[1], []);
    page.get(found[1]).push({ labels, value: found[3] === "+Inf" ? Infinity : Number(found[3]) });
  }
  return page;
}
const fits = (sample, wanted) => Object.entries(wanted).every(([name, value]) => sample.labels[name] === value);
const sum = (page, name, wanted = {}) =>
  (page.get(name) || []).filter(sample => fits(sample, wanted)).reduce((all, sample) => all + sample.value, 0);
function addPage(text) {
  pages.push({ time: performance.now(), page: parse(text) });
  if (pages.length > WINDOW) pages.shift();
}
const newest = () => pages[pages.length - 1];
function rate(name, wanted) {
  const now = newest(), before = pages[0];
  if (now === before) return 0;
  const after = sum(now.page, name, wanted), grown = after - sum(before.page, name, wanted);
  // A counter that fell belongs to a new process.
  return (grown >= 0 ? grown : after) / ((now.time - before.time) / 1000);
}
function buckets(page, wanted) {
  const counts = new Map();
  for (const sample of page.get("penstock_ttft_seconds_bucket") || [])
    if (fits(sample, wanted)) {
      const bound = sample.labels.le === "+Inf" ? Infinity : Number(sample.labels.le);
      counts.set(bound, (counts.get(bound) || 0) + sample.value);
    }
  return counts;
}
// A quantile of the time to first token, in seconds; null without a stream.
function firstToken(share, wanted = {}) {
  const before = buckets(pages[0].page, wanted);
  const grown = [...buckets(newest().page, wanted)].sort((a, b) => a[0] - b[0])
    .map(([bound, count]) => [bound, count - (before.get(bound) || 0)]);
  if (!grown.length || !(grown[grown.length - 1][1] > 0)) return null;
  const rank = share * grown[grown.length - 1][1];
  let low = 0, below = 0;
  for (const [bound, count] of grown) {
    if (count >= rank) return bound === Infinity ? low : low + (bound - low) * (rank - below) / Math.max(count - below, 1e-9);
    low = bound; below = count;
  }
  return low;
}
