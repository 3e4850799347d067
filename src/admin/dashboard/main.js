// The life of the page: the usage stream shows requests as they come and go, and wakes the reading of the other
// pages. Without the stream, usage is read with them.
let backends = [], timer = 0, busy = false, lastEvent = 0, lastUsage = -Infinity, streaming = null, isOpen = false, streamError = "", nextStream = 0, retries = 0, drawing = false;
const report = (text, tone) => put(at("state"), text, tone);
function reportLive() {
  if (isOpen) report("live", "good");
  else if (streamError) report("polling: " + streamError, "warn");
}

function showLive() {
  drawing = false;
  for (const backend of backends) {
    const row = [...at("backend-rows").children].find(row => row.dataset.key === backend.name);
    if (row) putLoad(row.children[3], backend);
  }
  const card = [...at("cards").children].find(card => card.dataset.key === "requests in flight");
  if (card) put(card.lastChild, showCount(inFlight()));
}
function takeEvent(usage) {
  takeUsage(usage);
  lastEvent = performance.now();
  if (!isOpen) { isOpen = true; retries = 0; reportLive(); }
  if (!drawing) { drawing = true; setTimeout(showLive, 200); }
  // Nothing happened for a while: do not wait for the slow turn.
  if (timer && timer.isSlow) plan(0);
}
function startStream() {
  if (streaming || performance.now() < nextStream) return;
  streaming = new AbortController();
  const own = streaming;
  let reason = "the usage stream has ended";
  follow("api/usage-stream", own.signal, takeEvent).catch(error => { reason = error.message; }).finally(() => {
    if (own !== streaming) return;
    streaming = null;
    isOpen = false;
    streamError = reason;
    nextStream = performance.now() + Math.min(60000, 2000 * 2 ** retries++);
    plan(0);
  });
}
function stopStream() {
  const own = streaming;
  streaming = null;
  isOpen = false;
  if (own) own.abort();
}
function plan(delay) {
  if (timer) clearTimeout(timer.id);
  timer = { id: setTimeout(turn, delay), isSlow: delay > EVERY };
}
async function turn() {
  timer = 0;
  if (busy) return;
  if (document.hidden) return stopStream();
  busy = true;
  try {
    const [metrics, fleet, decisions, usage] = await Promise.all([read("metrics"), readJson("fleet"),
      readJson("decisions?n=25"), isOpen ? null : readJson("api/usage")]);
    if (usage) takeUsage(usage);
    addPage(metrics);
    backends = fleet.backends;
    showOverview(backends); showHistory(); showBackends(backends); showMemory(backends); showPredictions(backends); showProtection(backends);
    showErrors(); showDecisions(decisions.decisions);
    await showShadow();
    await showBudgets();
    if (performance.now() - lastUsage > QUIET) { lastUsage = performance.now(); await showUsage(); }
    at("login").hidden = true;
    startStream();
    reportLive();
  } catch (error) {
    stopStream();
    if (error.status === 401) {
      report("a token is required", "bad");
      at("login").hidden = false;
    } else if (error.status === 0) {
      report("disconnected, trying again; the figures below are old", "bad");
      // A new process starts its counters again.
      pages.length = 0;
    } else {
      report("failed: " + error.message, "bad");
      if (!error.status) console.error(error);
    }
  }
  busy = false;
  const isQuiet = isOpen && performance.now() - lastEvent > 15000;
  plan(isQuiet ? QUIET : EVERY);
}
at("login").addEventListener("submit", event => {
  event.preventDefault();
  token = at("token").value.trim();
  sessionStorage.setItem("penstock-token", token);
  plan(0);
});
for (const id of ["usage-by", "usage-since"])
  at(id).addEventListener("change", () => { lastUsage = -Infinity; plan(0); });
at("theme").addEventListener("change", event => {
  document.documentElement.dataset.theme = event.target.value;
  localStorage.setItem("penstock-theme", event.target.value);
});
at("theme").value = document.documentElement.dataset.theme = localStorage.getItem("penstock-theme") || "";
document.addEventListener("visibilitychange", () => plan(0));
turn();
