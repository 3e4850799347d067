#!/usr/bin/env python3
"""Keeps what `cargo bench` measured in docs/performance/benches.json, from which the tables of
docs/performance.md are generated:

    cargo bench --profile dist
    python3 benches/rig/record.py
    PENSTOCK_BLESS=1 cargo test --test stories -- documentation

Rows that were not measured again stay as they are, each with its date."""
import argparse
import datetime
import json
import os
import pathlib
import platform

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "performance" / "benches.json"


def processor():
    """The kind of machine, without what names a single one."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} CPUs, {models[0] if models else platform.machine()}"


def measured_on(path):
    return datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()


def averages(folder):
    """criterion's median of the samples, with its confidence interval, and the fastest sample."""
    for path in sorted(folder.rglob("new/estimates.json")):
        median = json.loads(path.read_text())["median"]
        sample = json.loads((path.parent / "sample.json").read_text())
        name = json.loads((path.parent / "benchmark.json").read_text())["full_id"]
        each = [time / count for time, count in zip(sample["times"], sample["iters"])]
        interval = median["confidence_interval"]
        yield name, {
            "date": measured_on(path), "samples": len(each),
            "median_ns": round(median["point_estimate"], 2), "fastest_ns": round(min(each), 2),
            "interval_ns": [round(interval[end], 2) for end in ("lower_bound", "upper_bound")],
        }


def percentiles(folder):
    """Of single measurements, as the benches print them."""
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        yield row.pop("name"), {"date": measured_on(path), **row}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target",
                        help="the target folder of the run")
    target = parser.parse_args().target
    found = {"averages": dict(averages(target / "criterion")),
             "percentiles": dict(percentiles(target / "tmp" / "percentiles"))}
    if not any(found.values()):
        parser.error(f"no measurements in {target}: run cargo bench first")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    machine = processor()
    for kind, rows in found.items():
        for row in rows.values():
            row["machine"] = machine
        kept[kind] = dict(sorted({**kept.get(kind, {}), **rows}.items()))
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(found['averages'])} averages, {len(found['percentiles'])} rows of percentiles")


if __name__ == "__main__":
    main()
