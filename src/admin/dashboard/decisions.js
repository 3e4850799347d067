// Decisions with their reasons, the shadow strategy, and the usage of the ledger.
function reasonOf(one) {
  const words = [one.strategy + ", " + (one.candidates === 1 ? "the only candidate" : "best of " + one.candidates)];
  if (one.scoring) {
    const parts = Object.entries(one.scoring.scores).map(([name, score]) => [name, score, score * (one.scoring.weights[name] ?? 1)]);
    const [name, score] = parts.sort((a, b) => b[2] - a[2])[0] || [];
    if (name && one.candidates > 1) words.push("mostly by " + name + " " + score.toFixed(2));
  }
  if (one.requirements.model !== one.model) words.push(one.fallback ? "fallback model" : "alias");
  if (one.attempt > 1) words.push("attempt " + one.attempt);
  if (one.converted_to) words.push("converted to " + one.converted_to);
  if (one.assumed) words.push("a capability is assumed");
  return words.join("; ");
}
function factsOf(one) {
  const needs = one.requirements, flags = [needs.needs_vision && "vision", needs.needs_tools && "tools",
    needs.needs_json_mode && "JSON mode", needs.prefers_streaming && "stream"].filter(Boolean);
  const facts = [["requested model", needs.model], ["needs", flags.join(", ") || "nothing special"],
    ["estimated tokens", showCount(needs.estimated_tokens)], ["prompt tokens", showCount(needs.prompt_tokens)]];
  if (one.dropped_messages) facts.push(["dropped messages", showCount(one.dropped_messages)]);
  if (one.scoring) {
    for (const [name, score] of Object.entries(one.scoring.scores))
      facts.push([name, score.toFixed(3) + " × " + Number((one.scoring.weights[name] ?? 1).toFixed(3))]);
    facts.push(["total", one.scoring.total.toFixed(3)]);
    if (one.scoring.prompt_blocks) facts.push(["prompt blocks in the cache", one.scoring.matched_blocks + " of " + one.scoring.prompt_blocks]);
  }
  return facts;
}
function makeDecision(one) {
  const row = makeRow(["keep dim", "keep", "name", "name", "long", "name id"], 5), cells = row.children;
  const reason = make("details"), list = make("dl");
  for (const [name, text] of factsOf(one)) list.append(make("dt", name), make("dd", text));
  reason.append(make("summary", reasonOf(one)), list);
  put(cells[1], one.operation);
  put(cells[2], one.requirements.model === one.model ? one.model : one.requirements.model + " → " + one.model);
  put(cells[3], one.backend);
  cells[4].append(reason);
  put(cells[5], one.request_id);
  return row;
}
function showDecisions(decisions) {
  update(at("decision-rows"), decisions, one => one.number + " " + one.request_id, makeDecision,
    (row, one) => put(row.children[0], showTime(one.seconds_ago) + " ago"));
}
async function showShadow() {
  const is_on = newest().page.has("penstock_shadow_decisions_total"), facts = at("shadow-facts");
  facts.hidden = !is_on;
  if (!is_on) return put(at("shadow-note"), "No shadow strategy is configured: set routing.shadow to compare another strategy on live requests.");
  const { live: real, shadow, decisions, agreement, lag_ms, limit } = await readJson("shadow");
  const share = part => part === null ? "–" : (part * 100).toFixed(1) + " %";
  put(at("shadow-note"), limit);
  putFacts(facts, [
    ["live strategy", real.strategy], ["shadow strategy", shadow.strategy], ["same backend", share(agreement)],
    ["compared decisions", showCount(decisions.same + decisions.other)],
    ["expected cached, live", share(real.hit_rate)], ["expected cached, shadow", share(shadow.hit_rate)],
    ["no backend", showCount(decisions.none)], ["dropped", showCount(decisions.dropped), decisions.dropped ? "warn" : ""],
    ["delay", lag_ms === null ? "–" : showLatency(lag_ms / 1000)],
  ]);
}
function putCounts(row, name, counts, all) {
  const cells = row.children, cost = counts.cost === null ? "–" : counts.cost.toFixed(4);
  const figures = [counts.requests, counts.input_tokens, counts.output_tokens, counts.estimated].map(showCount);
  [name, ...figures, cost, showShare(counts.total_tokens, all)].forEach((text, index) =>
    put(index === 6 ? cells[6].firstChild : cells[index], text));
  cells[6].lastChild.replaceWith(makeBar([counts.total_tokens], all));
}
function makeUsageRow() {
  const row = makeRow(["name", "number", "number", "number", "number", "number", "keep"]);
  row.children[6].append(make("span"), makeBar([], 0));
  return row;
}
async function showUsage() {
  const by = at("usage-by").value, since = at("usage-since").value;
  let usage;
  try {
    usage = await readJson("usage?by=" + by + "&n=50&since=" + since);
  } catch (error) {
    if (error.status === 503) return put(at("usage-note"), "The ledger does not respond: " + error.message);
    throw error;
  }
  put(at("usage-note"), usage.has_file ? "" : "The ledger is in memory only: it counts since penstock started and ends with it. Set ledger.path to keep the counts in a file.");
  put(at("usage-head"), by);
  const nameOf = row => row[by] || (by === "key" ? "(no key)" : "(none)"), all = usage.sum.total_tokens;
  update(at("usage-rows"), usage.rows, nameOf, makeUsageRow, (row, counts) => putCounts(row, nameOf(counts), counts, all));
  update(at("usage-sum"), [usage.sum], () => "sum", makeUsageRow, (row, sum) =>
    putCounts(row, usage.has_more ? "sum of all, also those not shown" : "sum", sum, all));
}
