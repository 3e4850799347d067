// The sections of the page, one function each.
const CHARTS = [
  { name: "Requests per second", lines: ["all", "failed or busy"], show: value => value === null ? "–" : showRate(value),
    read: () => [rate("penstock_requests_total"), rate("penstock_requests_total", { outcome: "fault" }) + rate("penstock_requests_total", { outcome: "busy" })] },
  { name: "Tokens per second", lines: ["output", "input"], show: value => value === null ? "–" : showRate(value),
    read: () => [Math.max(rate("penstock_tokens_total", { type: "output" }), rate("penstock_stream_tokens_total")), rate("penstock_tokens_total", { type: "input" })] },
  { name: "Requests in flight", lines: ["most of each interval"], show: value => value === null ? "–" : showCount(value), read: () => [takePeak()] },
  { name: "Time to first token", lines: ["p50", "p95"], show: showLatency, read: () => [firstToken(0.5), firstToken(0.95)] },
];
const samples = CHARTS.map(() => []);
// By the usage stream: requests in flight per backend URL and model, and how many there were at most.
let live = {}, peak = 0;
const sumOf = counts => Object.values(counts).reduce((all, count) => all + count, 0);
const inFlight = () => Object.values(live).reduce((all, counts) => all + sumOf(counts), 0);
function takePeak() {
  const most = Math.max(peak, inFlight());
  peak = inFlight();
  return most;
}
function takeUsage(usage) {
  live = usage.usage_counts;
  peak = Math.max(peak, inFlight());
}
function showHistory() {
  const all = CHARTS.map((chart, index) => {
    samples[index].push(pages.length > 1 ? chart.read() : chart.lines.map(() => null));
    if (samples[index].length > KEPT) samples[index].shift();
    return [chart, samples[index]];
  });
  update(at("charts"), all, one => one[0].name, one => makeChart(one[0]), (box, one) => fillChart(box, ...one));
}
function showOverview(backends) {
  const page = newest().page, all = rate("penstock_requests_total");
  const of = outcome => rate("penstock_requests_total", { outcome });
  const failed = of("fault") + of("busy"), ready = backends.filter(one => state(one)[0] === "ready").length;
  const build = (page.get("penstock_build_info") || [{ labels: {} }])[0];
  put(at("version"), build.labels.version || "");
  put(at("up"), "up " + showTime(Date.now() / 1000 - sum(page, "penstock_process_start_time_seconds")));
  putFacts(at("cards"), [
    ["requests / s", showRate(all)],
    ["requests in flight", showCount(inFlight())],
    ["backends ready", ready + " of " + backends.length, ready < backends.length ? "warn" : "good"],
    ["failed or busy", showShare(failed, all), failed > 0 ? "bad" : ""],
    ["client disconnects", showShare(of("cancel"), all)],
    ["TTFT p50", showLatency(firstToken(0.5))], ["TTFT p95", showLatency(firstToken(0.95))],
    ["retries / s", showRate(rate("penstock_retries_total"))],
    ...(sum(page, "penstock_max_queue_requests") ? [["waiting in the queue", showCount(sum(page, "penstock_queue_requests"))]] : []),
    ["connections", showCount(sum(page, "penstock_connections"))],
    ["request bodies", showBytes(sum(page, "penstock_held_body_bytes"))],
    ["memory of penstock", showBytes(sum(page, "penstock_process_resident_bytes"))],
  ]);
}
function state(backend) {
  if (backend.health === "unhealthy") return ["down", "bad"];
  if (backend.health === "draining") return ["draining", "warn"];
  if (backend.health !== "healthy") return ["unchecked", "dim"];
  if (backend.breaker === "open") return ["breaker open", "bad"];
  if (backend.breaker === "half_open") return ["probing", "warn"];
  if (backend.cooldown_remaining_s) return ["cooldown " + Math.ceil(backend.cooldown_remaining_s) + " s", "warn"];
  return ["ready", "good"];
}
function showModels(models) {
  const shown = models.slice(0, 20).map(model => model.id).join(", ");
  return models.length > 20 ? shown + " and " + (models.length - 20) + " more" : shown;
}
function putLoad(cell, backend) {
  // The stream counts requests for a model; those without one are known by the fleet only.
  const modelled = (backend.models || []).reduce((all, model) => all + (model.in_flight || 0), 0);
  const count = sumOf(live[backend.url] || {}) + Math.max(backend.in_flight - modelled, 0), most = backend.max_in_flight;
  if (!cell.firstChild) cell.append(make("span"));
  put(cell.firstChild, showCount(count) + (most ? " / " + showCount(most) : ""));
  if (most && !cell.children[1]) cell.append(make("meter"));
  if (most) {
    const meter = cell.children[1];
    meter.max = most; meter.value = count; meter.high = most * 0.9;
    meter.setAttribute("aria-label", "in flight, of at most " + most);
  }
}
function showBackends(backends) {
  const classes = ["name", "keep", "keep dim", "keep", "keep", "number", "number", "number", "number", "number", "long"];
  update(at("backend-rows"), backends, one => one.name, () => makeRow(classes), (row, backend) => {
    const cells = row.children, of = { backend: backend.name }, [word, tone] = state(backend), engine = backend.telemetry || {};
    const failing = rate("penstock_attempts_total", { ...of, outcome: "fault" }) + rate("penstock_attempts_total", { ...of, outcome: "busy" });
    put(cells[0], backend.name);
    put(cells[1], word, "keep " + tone);
    put(cells[2], backend.engine || "");
    putLoad(cells[3], backend);
    put(cells[4], engine.waiting === undefined ? "–" : engine.waiting + " waiting, " + (engine.running ?? "–") + " running");
    put(cells[5], showRate(rate("penstock_attempts_total", of)));
    put(cells[6], showRate(failing), "number" + (failing > 0 ? " bad" : ""));
    put(cells[7], showLatency(firstToken(0.5, of)));
    put(cells[8], showLatency(firstToken(0.95, of)));
    put(cells[9], showRate(rate("penstock_stream_tokens_total", of)));
    put(cells[10], showModels(backend.models || []));
  });
}
function describe(model, counts) {
  const facts = [model.id];
  if (model.vram_bytes) facts.push(showBytes(model.vram_bytes));
  if (model.residency === "sleeping") facts.push("sleeping");
  if (counts[model.id]) facts.push(counts[model.id] + " in flight");
  // Ollama reports a date some centuries away for models that stay.
  if (model.expires_in_s > 0 && model.expires_in_s < 1e8) facts.push("unloads in " + showTime(model.expires_in_s));
  return facts.join(" · ");
}
function showMemory(backends) {
  const loaded = one => (one.models || []).filter(model => model.residency === "resident" || model.residency === "sleeping");
  const reporting = backends.filter(one => one.models_in_memory !== undefined || (one.models || []).some(model => model.residency));
  const most = Math.max(...reporting.map(one => one.vram_bytes || one.vram_used_bytes || 0), 0), silent = backends.length - reporting.length;
  at("memory-box").hidden = !reporting.length;
  put(at("memory-note"), !silent ? "" : reporting.length ? silent + " of " + backends.length + " backends do not report which models they have in memory."
    : "No backend reports which models it has in memory.");
  update(at("memory-rows"), reporting, one => one.name, () => {
    const row = makeRow(["name", "keep", "long"]);
    row.children[1].append(make("span"), makeBar([], 0));
    row.children[2].append(make("ul", undefined, "chips"));
    return row;
  }, (row, backend) => {
    const models = loaded(backend), [name, vram, list] = row.children, sizes = models.map(model => model.vram_bytes || 0);
    put(name, backend.name);
    const used = backend.vram_used_bytes;
    put(vram.firstChild, (used ? showBytes(used) : "–") + (backend.vram_bytes ? " of " + showBytes(backend.vram_bytes) : ""));
    vram.lastChild.replaceWith(makeBar(sizes, backend.vram_bytes || most));
    vram.lastChild.classList.toggle("empty", !used);
    putLines(list.firstChild, models.map(model => [describe(model, live[backend.url] || {})]), 30, "none");
  });
}
function showPredictions(backends) {
  const all = backends.flatMap(one => (one.models || []).filter(model => model.prediction).map(model => [one.name, model.id, model.prediction]));
  const time = ms => showLatency(ms / 1000), most = 50;
  at("predictions-box").hidden = !all.length;
  put(at("predictions-note"), !all.length ? "Nothing is predicted: see routing.predict and the strategy slo."
    : all.length > most ? "The first " + most + " of " + showCount(all.length) + "." : "");
  const classes = ["name", "name", "keep", ...Array(7).fill("number")];
  update(at("prediction-rows"), all.slice(0, most), one => one[0] + "\n" + one[1], () => makeRow(classes), (row, [backend, model, one]) => {
    const texts = [backend, model, one.trusted ? "yes" : "not yet", showShare(one.error, 1), showShare(one.coverage, 1), time(one.backlog_ms),
      // Microseconds per token are milliseconds per thousand tokens.
      time(one.step_ms), time(one.prompt_token_us), time(one.front_end_ms), one.slots === null ? "–" : showCount(one.slots)];
    texts.forEach((text, index) => put(row.children[index], text));
    put(row.children[2], texts[2], one.trusted ? "keep good" : "keep warn");
  });
}
function showProtection(backends) {
  const lines = [], seconds = left => Math.ceil(left) + " s";
  for (const one of backends) {
    if (one.breaker === "open") lines.push([one.name + ": the circuit breaker is open", "bad"]);
    if (one.breaker === "half_open") lines.push([one.name + ": the circuit breaker is half-open, one request probes", "warn"]);
    if (one.frozen_s) lines.push([one.name + ": its requests make no progress, other backends are preferred", "bad"]);
    if (one.check_status) lines.push([one.name + ": the health check returns " + one.check_status, "warn"]);
    if (one.is_suspect) lines.push([one.name + ": two of its models fail more than elsewhere, other backends are preferred", "warn"]);
    else for (const model of one.models || [])
      if (model.breaker) lines.push([one.name + ": " + model.id + " fails more there than elsewhere, other backends are preferred", "warn"]);
    if (one.cooldown_remaining_s) lines.push([one.name + ": in cooldown for " + seconds(one.cooldown_remaining_s) + " after a " + one.cooldown_status, "warn"]);
    else for (const model of one.models || [])
      if (model.cooldown_remaining_s) lines.push([one.name + ": " + model.id + " is in cooldown for " + seconds(model.cooldown_remaining_s) + " after a " + model.cooldown_status, "warn"]);
    if (one.credentials_in_cooldown) lines.push([one.name + ": credentials of clients in cooldown: " + one.credentials_in_cooldown, "warn"]);
    if (one.clients_avoiding) lines.push([one.name + ": clients that avoid it after faults they met: " + one.clients_avoiding, "warn"]);
    if (one.health === "draining") lines.push([one.name + ": draining" + (one.empty_in_s ? ", empty in some " + seconds(one.empty_in_s) : ""), "warn"]);
  }
  putLines(at("protection-rows"), lines, 50, "No breaker is open, nothing is in cooldown.");
}
async function showBudgets() {
  // The metrics say whether there are any: most fleets have none.
  const any = newest().page.has("penstock_budget_limit");
  at("budgets").hidden = at("budgets-link").hidden = !any;
  if (!any) return;
  const { budgets, currency, has_more } = await readJson("budgets?n=50"), money = value => value.toFixed(value < 10 ? 4 : 2);
  put(at("budgets-note"), (currency ? "In " + currency + "." : "") + (has_more ? " The first " + budgets.length + "." : ""));
  const classes = ["name", "name", "number", "number", "number", "number", "number", "keep"];
  update(at("budget-rows"), budgets, one => one.name + "\n" + one.subject, () => makeRow(classes), (row, one) => {
    const used = one.limit ? one.spent / one.limit : 1, tone = used >= 1 ? " bad" : one.soft !== null && one.spent >= one.soft ? " warn" : "";
    const texts = [one.name, one.subject || "all", money(one.spent), money(one.reserved), money(one.limit), showShare(used, 1), showCount(one.refused),
      one.resets_at.replace("T", " ").replace("Z", " UTC")];
    texts.forEach((text, index) => put(row.children[index], text));
    put(row.children[5], texts[5], "number" + tone);
  });
}
function showErrors() {
  const codes = (newest().page.get("penstock_errors_total") || []).map(sample => sample.labels.code);
  const rates = codes.map(code => [code, rate("penstock_errors_total", { code })]).filter(([, rate]) => rate > 0).sort((a, b) => b[1] - a[1]);
  putLines(at("error-rows"), rates.map(([code, rate]) => [code + ": " + showRate(rate) + " / s", "bad"]), 12, "penstock made no error response in the last ten seconds.");
}
