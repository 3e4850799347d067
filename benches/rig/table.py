#!/usr/bin/env python3
"""The markdown tables: medians, and ratios with their interval. Of rows kept before:

    python3 benches/rig/table.py docs/performance/rig/requests.jsonl
"""
import json
import math
import statistics
import sys
from pathlib import Path

# What the names of the scenarios mean.
MEANING = {"S1": "300 B", "S2": "32 KiB full of escapes", "S2new": "32 KiB, no two begin alike",
           "S3": "1 MiB with an image", "S4pace": "stream, a token each 5 ms",
           "S1tls": "300 B over TLS", "S2tls": "32 KiB over TLS", "S1h2c": "300 B in HTTP/2",
           "S1h2": "300 B in HTTP/2 over TLS", "handshake": "300 B over TLS, a new connection each"}

# Ratios to the floor that are aimed at; none where a figure is only to be known.
BARS = {"S1": 0.80, "S2": 0.70, "S2new": None, "S3": 1.05, "S4pace": 1.05,
        "S1tls": None, "S2tls": None, "S1h2c": None, "S1h2": None, "handshake": None}
# The same of penstock with other strategies to penstock with `smart`.
STRATEGIES = {"weighted": 1.15, "shadow": None}
IDLE_MB, STREAM_KIB, STALLED_KIB, CANCEL_MS = 20, 64, 512, 100


def interval(values):
    """The narrowest interval between two order statistics that holds the median with 95 %
    confidence, whatever the distribution; none for fewer than six values."""
    ordered, count = sorted(values), len(values)
    rank, tail = 0, 0.0
    for k in range(count // 2):
        tail += math.comb(count, k) / 2 ** count
        if 1 - 2 * tail < 0.95:
            break
        rank = k + 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def ratios(rows, scenario, peer, own="penstock"):
    """own / peer of each round both were measured in."""
    cpu = {(row["peer"], row["round"]): row["cpu_us"]
           for row in rows if row["kind"] == "cpu" and row["scenario"] == scenario}
    rounds = [index for name, index in cpu if name == own and (peer, index) in cpu]
    return [cpu[own, index] / cpu[peer, index] for index in rounds if cpu[peer, index]]


def ratio(rows, scenario, peer, own="penstock"):
    values = ratios(rows, scenario, peer, own)
    if not values:
        return "-"
    between = interval(values)
    text = f"{statistics.median(values):.2f}"
    return text + (f" ({between[0]:.2f}–{between[1]:.2f})" if between else "")


def median(rows, field, **where):
    values = [row[field] for row in rows
              if all(row.get(name) == value for name, value in where.items())
              and row[field] is not None]
    return statistics.median(values) if values else None


def show(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def line(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def cpu_table(rows, peers):
    scenarios = [name for name in BARS if any(row.get("scenario") == name for row in rows)]
    if not scenarios:
        return
    yield line("proxy CPU", *(f"{peer}, µs" for peer in peers), "/ floor (95 %)", "bar",
               "/ nginx (95 %)", "/ haproxy (95 %)", "rounds")
    yield "|---" * (len(peers) + 6) + "|"
    for name in scenarios:
        unit = "event" if name == "S4pace" else "request"
        each = (show(median(rows, "cpu_us", kind="cpu", scenario=name, peer=peer), 2)
                for peer in peers)
        bar = f"≤ {BARS[name]:.2f}" if BARS[name] else ""
        yield line(f"{name}: {MEANING[name]}, per {unit}", *each, ratio(rows, name, "floor"), bar,
                   ratio(rows, name, "nginx"), ratio(rows, name, "haproxy"),
                   len({row["round"] for row in rows if row.get("scenario") == name}))
    yield ""


def strategy_table(rows, peers):
    others = [peer for peer in STRATEGIES if peer in peers and "penstock" in peers]
    if not others:
        return
    yield line("proxy CPU", *(f"{peer} / smart (95 %)" for peer in others))
    yield "|---" * (len(others) + 1) + "|"
    for name in (name for name in BARS if ratios(rows, name, "penstock", others[0])):
        yield line(f"{name}: {MEANING[name]}",
                   *(ratio(rows, name, "penstock", peer) for peer in others))
    bars = (f"≤ {STRATEGIES[peer]:.2f}" if STRATEGIES[peer] else "" for peer in others)
    yield line("bar", *bars)
    yield ""


def memory_table(rows, peers):
    if not any(row["kind"] == "memory" for row in rows):
        return
    yield line("memory", "idle, MB", "1,000 streams open, MB", "KiB per stream", "peak, MB")
    yield "|---" * 5 + "|"
    for peer in peers:
        mb = [median(rows, field, kind="memory", peer=peer)
              for field in ("idle_kib", "open_kib", "peak_kib")]
        idle, held, peak = (None if kib is None else kib * 1024 / 1e6 for kib in mb)
        yield line(peer, show(idle), show(held),
                   show(median(rows, "kib_per_stream", kind="memory", peer=peer)), show(peak))
    yield line("bar for penstock", f"≤ {IDLE_MB}", "", f"≤ {STREAM_KIB}", "")
    yield ""


def connection_table(rows, peers):
    parts = [("idle", "kib_per_connection", "idle, each after a body of 32 KiB", "floor"),
             ("stalled", "kib_per_client", "unread stream", f"{STALLED_KIB}")]
    parts = [part for part in parts if any(row["kind"] == part[0] for row in rows)]
    if not parts:
        return
    yield line("KiB per connection", *peers, "bar")
    yield "|---" * (len(peers) + 2) + "|"
    for kind, field, text, bar in parts:
        yield line(text, *(show(median(rows, field, kind=kind, peer=peer)) for peer in peers),
                   f"≤ {bar}")
    yield ""


def cancel_table(rows):
    found = [row for row in rows if row["kind"] == "cancel"]
    if not found:
        return
    yield line("client leaves → connection to the engine closed", "cancels", "p50, ms", "p99, ms",
               "most, ms", "bar, p99")
    yield "|---" * 6 + "|"
    for row in found:
        yield line(f"{row['peer']}, {row['phase']}", row["cancels"], show(row["p50_ms"], 2),
                   show(row["p99_ms"], 2), show(row["max_ms"], 2),
                   f"≤ {CANCEL_MS}" if row["peer"] == "penstock" else "")
    yield ""


def tables(rows, peers):
    parts = [*cpu_table(rows, peers), *strategy_table(rows, peers), *memory_table(rows, peers),
             *connection_table(rows, peers), *cancel_table(rows)]
    errors = sum(row["errors"] for row in rows if "errors" in row)
    parts.append(f"Errors: {errors}.")
    cpu = [row for row in rows if row["kind"] == "cpu"]
    if cpu:
        others = statistics.median(row["others_share"] for row in cpu)
        stolen = max(row["stolen_share"] for row in cpu)
        parts[-1] += (f" The proxy's CPU did other work for {others:.1%} of the time (median) and"
                      f" was taken by the host for {stolen:.1%} at most.")
    return "\n".join(parts)


def measured(rows):
    """When and on what the rows were measured, from the line that each run begins with."""
    for row in (row for row in rows if row["kind"] == "setup"):
        versions = ", ".join(version for version in row["versions"].values() if version)
        turns = f"{row['slices']} turns in each, " if row["slices"] > 1 else ""
        yield (f"{row.get('date', '')}: {row['cpus']} CPUs, {row['cpu']}; {row['rounds']} rounds,"
               f" {turns}{row['seconds']:g} s per turn; {versions}.\n")


def main():
    rows = [json.loads(text) for text in Path(sys.argv[1]).read_text().splitlines()]
    named = {name: None for row in rows if row["kind"] == "setup" for name in row["versions"]}
    print("\n".join(measured(rows)))
    print(tables(rows, list(named)))


if __name__ == "__main__":
    main()
