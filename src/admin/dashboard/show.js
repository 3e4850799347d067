// Text, elements and charts. All text goes through `textContent`: names come from clients and engines, so they
// are never markup.
const SVG = "http://www.w3.org/2000/svg";
const NUMBER = new Intl.NumberFormat("en");
const showCount = count => NUMBER.format(count);
const showRate = rate => rate >= 10000 ? (rate / 1000).toFixed(1) + "k" : rate >= 100 ? rate.toFixed(0) : rate > 0 ? rate.toFixed(1) : "0";
const showLatency = s => s === null ? "–" : s < 1 ? (s * 1000).toFixed(0) + " ms" : s < 100 ? s.toFixed(1) + " s" : s.toFixed(0) + " s";
const showShare = (part, all) => all > 0 ? (part / all * 100).toFixed(1) + " %" : "–";
function showBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return bytes.toFixed(unit < 2 || bytes >= 100 ? 0 : 1) + " " + units[unit];
}
function showTime(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 1) return Math.floor(seconds) + " s";
  if (hours < 1) return minutes + " min";
  return hours < 48 ? hours + " h " + (minutes % 60) + " min" : Math.floor(hours / 24) + " d " + (hours % 24) + " h";
}
function make(kind, text, className) {
  const element = document.createElement(kind);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}
function draw(kind, attributes) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
// Changes only what differs: focus, selections and open reasons survive.
function put(element, text, className) {
  if (element.textContent !== text) element.textContent = text;
  if (className !== undefined && element.className !== className) element.className = className;
}
// Makes the children of `list` those of `items`, by their keys; `fill` gets each with its item.
function update(list, items, keyOf, makeOne, fill) {
  const known = new Map([...list.children].map(one => [one.dataset.key, one]));
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    const one = known.get(key) || makeOne(item);
    known.delete(key);
    one.dataset.key = key;
    fill(one, item);
    if (list.children[index] !== one) list.insertBefore(one, list.children[index] || null);
  });
  for (const gone of known.values()) gone.remove();
}
// A row with a cell per class; the cell at `header` names the row.
function makeRow(classes, header = 0) {
  const row = make("tr");
  classes.forEach((className, index) => {
    const cell = make(index === header ? "th" : "td", "", className);
    if (index === header) cell.scope = "row";
    row.append(cell);
  });
  return row;
}
// Lines of text, at most `most` of them.
function putLines(list, lines, most, nothing) {
  const shown = lines.slice(0, most).map(([text, tone]) => [text, tone || ""]);
  if (lines.length > most) shown.push(["and " + showCount(lines.length - most) + " more", "dim"]);
  if (!lines.length) shown.push([nothing, "dim"]);
  update(list, shown.map((line, index) => [index, ...line]), line => line[0], () => make("li"),
    (one, [, text, tone]) => put(one, text, tone));
}
function putFacts(list, facts) {
  update(list, facts, fact => fact[0], fact => {
    const box = make("div", undefined, "card");
    box.append(make("dt", fact[0]), make("dd"));
    return box;
  }, (box, [, text, tone]) => put(box.lastChild, text, tone || ""));
}
// Segments of a whole as a bar; the text beside it says the same.
function makeBar(parts, whole) {
  const bar = draw("svg", { class: "bar", viewBox: "0 0 150 8", preserveAspectRatio: "none", "aria-hidden": "true" });
  let from = 0;
  for (const part of parts) {
    const width = whole > 0 ? Math.min(part / whole * 150, 150 - from) : 0;
    bar.append(draw("rect", { x: from.toFixed(1), y: 0, width: width.toFixed(1), height: 8 }));
    from += width;
  }
  return bar;
}
function makeChart(chart) {
  const box = make("figure"), caption = make("figcaption", chart.name), legend = make("p"), range = make("p");
  const picture = draw("svg", { role: "img", viewBox: "0 0 " + (KEPT - 1) + " 40", preserveAspectRatio: "none" });
  picture.append(draw("path", {}), draw("path", { class: "second" }));
  caption.append(make("span"));
  legend.append(make("span", "line: " + chart.lines[0]), make("span", chart.lines[1] ? "dashed: " + chart.lines[1] : ""));
  range.append(make("span"), make("span", "now"));
  box.append(caption, picture, legend, range);
  return box;
}
// `points` are the values of both lines per sample; null is a gap.
function fillChart(box, chart, points) {
  const [caption, picture, , range] = box.children, from = KEPT - points.length;
  const all = points.flat().filter(value => value !== null), most = Math.max(...all, 0);
  const scale = most > 0 ? 37 / most : 0;
  chart.lines.forEach((_, line) => {
    let path = "", move = true;
    points.forEach((values, index) => {
      const value = values[line];
      if (value === null) { move = true; return; }
      path += (move ? "M" : "L") + (from + index) + " " + (39 - value * scale).toFixed(2);
      move = false;
    });
    picture.children[line].setAttribute("d", path);
  });
  const last = points[points.length - 1] || [];
  const words = chart.lines.map((name, line) => name + " " + chart.show(last[line] ?? null));
  const minutes = showTime((points.length - 1) * EVERY / 1000);
  put(caption.lastChild, chart.show(last[0] ?? null), "chart-line");
  put(range.firstChild, minutes + " ago; highest " + chart.show(all.length ? most : null));
  picture.setAttribute("aria-label", chart.name + ": now " + words.join(", ") + "; highest " +
    chart.show(all.length ? most : null) + " in the last " + minutes);
}
