#!/usr/bin/env python3
"""Computes the tables of simulated figures: `python3 docs/performance/tables.py target/release/penstock`.

It writes policies.json, goodput.json, overload.json and worlds.json beside itself; the pages are made from them by
`PENSTOCK_BLESS=1 cargo test --test stories -- documentation`. It takes about an hour on two CPUs. Workloads whose trace
is not in the repository keep the figures that they have: --azure-code and --azure-conv name the files of the Azure
LLM inference traces of 2023 (https://github.com/Azure/AzurePublicDataset). --column balanced computes that column alone,
after a change of its scorers: the loads and the other columns stay.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MOONCAKE = ROOT / "conf/traces/mooncake-conversation.jsonl.gz"
SIMULATIONS = ROOT / "conf/simulations"

POLICIES = {
    "round_robin": "strategy: round_robin",
    "smart": "strategy: smart",
    "least-loaded": "preset: least-loaded",
    "llm-d": "preset: llm-d",
    "sglang": "preset: sglang",
    "lmetric": "preset: lmetric",
    "token-load": "scorers: [{ name: token-load, weight: 1 }]",
    "prefill-cost": "scorers: [{ name: prefill-cost, weight: 1 }]",
    "sticky": "preset: sticky",
    "balanced": "preset: balanced",
}
FULL_LOADS = [0.5, 0.7, 0.9, 1.1]
PRESETS = ["chatbot", "contentgen", "summarization", "multidoc", "shared-prefix", "conversation"]
STRATEGIES = {
    "round_robin": "strategy: round_robin",
    "smart": "strategy: smart",
    "least-loaded": "preset: least-loaded",
    "balanced": "preset: balanced",
    "sticky": "preset: sticky",
    "slo": "strategy: slo",
}
# A workload of worlds/, its number of engines, the speed at load 1 (found by runs of `balanced` until the queue grew),
# and the loads of the table. In `hetero` and `two` the second half of the engines is three times as slow.
WORLDS = [
    ("agent", 8, 2.715, [0.5, 1.0]),
    ("hetero", 4, 2.682, [0.4, 0.8, 1.0]),
    ("two", 2, 12.2, [0.3, 0.8]),
    ("bimodal", 8, 1.733, [0.5, 0.8]),
    ("tenant", 8, 5.342, [0.6]),
    ("closed160", 8, 1, [1.0]),
]
WORLD_POLICIES = {
    "balanced": "preset: balanced",
    "slo": "strategy: slo",
    "sticky": "preset: sticky",
    "llm-d": "preset: llm-d",
    "lmetric": "preset: lmetric",
    "smart": "strategy: smart",
}
QUEUE = "queue: { size: 2000, max_backlog: 150ms }\n"
OBJECTIVES = {
    "mooncake": ("5s", "100ms", 0.2),
    "azure-code": ("1s", "100ms", 0.3),
    "azure-conv": ("500ms", "80ms", 0.4),
    "chat": ("200ms", "50ms", 1.0),
    "agentic": ("2s", "100ms", 1.0),
}


def mean(values):
    return sum(values) / len(values)


def config(folder, name, routing, backends, queue=""):
    """A file with `backends` of them and this routing."""
    path = pathlib.Path(folder) / f"{name}.yaml"
    urls = ", ".join(f"http://b{n + 1}:8000" for n in range(backends))
    path.write_text(f"routing: {{ {routing} }}\n{queue}backends: [{urls}]\n")
    return path


def simulate(binary, workload, configs, seeds, *flags):
    """One run of the simulator; the configurations by name."""
    command = [binary, "simulate", str(workload), "--seeds", str(seeds), "--json", *flags]
    for path in configs.values():
        command += ["--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found = json.loads(done.stdout)
    names = [*configs, "oracle", "oracle, refusing"]
    return found, dict(zip(names, found["configurations"]))


def figures(configuration):
    """The means of the seeds of one configuration."""
    seeds = configuration["seeds"]
    of = lambda read: round(mean([read(seed) for seed in seeds]), 5)
    return {
        "goodput": of(lambda seed: seed["goodput"]),
        "goodput_seeds": [round(seed["goodput"], 4) for seed in seeds],
        "e2e": of(lambda seed: seed["e2e_seconds"]["mean"]),
        "ttft": of(lambda seed: seed["ttft_seconds"]["mean"]),
        "ttft_p99": of(lambda seed: seed["ttft_seconds"]["p99"]),
        "tpot": of(lambda seed: seed["tpot_seconds"]["mean"]),
        "hit_rate": of(lambda seed: seed["hit_rate"]),
        "saturated": sum(bool(seed["saturated"]) for seed in seeds),
        "shed": of(lambda seed: sum(seed["shed"].values()) / seed["requests"]),
    }


def policies(binary, traces, seeds):
    """The mean time to the end of every policy on eight engines."""
    workloads = [(name, traces[name], FULL_LOADS) for name in ("mooncake", "azure-code", "azure-conv")]
    workloads += [("agentic", "agentic", FULL_LOADS), ("bursty", "bursty", FULL_LOADS)]
    workloads += [(name, name, [0.7]) for name in PRESETS]
    with tempfile.TemporaryDirectory() as folder:
        configs = {name: config(folder, name, text, 8) for name, text in POLICIES.items()}
        for name, workload, loads in workloads:
            for load in loads if workload else []:
                found, by_name = simulate(binary, workload, configs, seeds, "--load", str(load))
                all_figures = {name: figures(by_name[name]) for name in configs}
                for one in all_figures.values():
                    del one["goodput_seeds"], one["shed"]
                yield {
                    "workload": name,
                    "load": load,
                    "rate": round(found["rate"], 3),
                    "policies": all_figures,
                }


def goodput(binary, traces, seeds):
    """Requests that meet their objectives on four engines, beside oracles."""
    rows = [(name, traces[name]) for name in ("mooncake", "azure-code", "azure-conv")]
    cells = [
        (name, workload, arrivals, load)
        for name, workload in [*rows, ("chat", "chatbot")]
        for arrivals in ("poisson", "bursty")
        for load in (0.3, 0.6, 0.85, 0.95, 1.1)
    ]
    cells += [("agentic", "agentic", "sessions", load) for load in (0.6, 0.85, 0.95, 1.1)]
    with tempfile.TemporaryDirectory() as folder:
        configs = {name: config(folder, name, text, 4) for name, text in STRATEGIES.items()}
        if "slo" in STRATEGIES:
            configs["slo-queue"] = config(folder, "slo-queue", STRATEGIES["slo"], 4, QUEUE)
        for name, workload, arrivals, load in cells:
            if not workload:
                continue
            ttft, tpot, part = OBJECTIVES[name]
            flags = ["--load", str(load), "--ttft", ttft, "--tpot", tpot, "--part", str(part)]
            if arrivals != "sessions":
                flags += ["--arrivals", {"poisson": "poisson", "bursty": "gamma:3"}[arrivals]]
            found, by_name = simulate(binary, workload, configs, seeds, *flags)
            strategies = {name: figures(by_name[name]) for name in configs}
            if arrivals != "sessions" and "balanced" in configs and "slo" in configs:
                # Of an oracle three seeds say enough, and take as long as all others.
                first = {"balanced": configs["balanced"]}
                _, oracles = simulate(binary, workload, first, 3, *flags, "--oracle")
                for oracle in ("oracle", "oracle, refusing"):
                    strategies[oracle] = figures(oracles[oracle])
            yield {
                "workload": name,
                "arrivals": arrivals,
                "load": load,
                "part": part,
                "seeds": seeds,
                "requests": found["requests"],
                "rate": round(found["rate"], 3),
                "objective": {"ttft": ttft, "tpot": tpot},
                "strategies": strategies,
            }


def overload(binary, seeds):
    """What is refused, and to whose good."""
    names = ("balanced", "slo", "slo-queue")
    configs = {name: SIMULATIONS / f"{name}.yaml" for name in names}
    for load in (0.5, 0.75, 0.9, 1.2, 1.6):
        found, by_name = simulate(binary, "overload", configs, seeds, "--part", "0.5", "--load", str(load))
        strategies = {}
        for name in names:
            runs = by_name[name]["seeds"]
            strategies[name] = figures(by_name[name])
            if runs[0]["sheds"]:
                strategies[name]["sheds"] = {
                    key.removeprefix("sheddable_"): round(mean([run["sheds"][key] for run in runs]), 2)
                    for key in runs[0]["sheds"]
                }
            strategies[name]["priorities"] = [
                {
                    "priority": priority,
                    "goodput": round(mean([of(run, priority)["goodput"] for run in runs]), 4),
                    "ttft_p99": round(mean([of(run, priority)["ttft_seconds"]["p99"] for run in runs]), 4),
                    "shed": round(mean([share_shed(of(run, priority)) for run in runs]), 4),
                }
                for priority in (0, -1)
            ]
        yield {
            "workload": "overload",
            "arrivals": "as given",
            "load": load,
            "part": 0.5,
            "seeds": seeds,
            "requests": found["requests"],
            "rate": round(found["rate"], 3),
            "strategies": strategies,
        }


def worlds(binary, seeds):
    """Engines of unequal speed, agents in a closed loop, and long prompts beside chats."""
    folder_of = HERE / "worlds"
    with tempfile.TemporaryDirectory() as folder:
        for name, backends, speed, loads in WORLDS:
            configs = {policy: config(folder, policy, text, backends) for policy, text in WORLD_POLICIES.items()}
            engines = []
            if name in ("hetero", "two"):
                for number in range(backends):
                    row = "fast" if number < backends // 2 else "slow3"
                    engines += ["--engine", f"b{number + 1}:8000={folder_of / row}.json"]
            for load in loads:
                flags = [*engines, "--seed", "11", "--ttft", "2s", "--tpot", "60ms"]
                if name != "closed160":
                    flags += ["--speed", f"{speed * load:.3f}"]
                found, by_name = simulate(binary, folder_of / f"{name}.yaml", configs, seeds, *flags)
                of_policy = {policy: figures(one) for policy, one in by_name.items()}
                for policy, one in of_policy.items():
                    runs = by_name[policy]["seeds"]
                    one["tokens_per_second"] = round(mean([run["tokens_per_second"] for run in runs]), 1)
                first = found["configurations"][0]
                yield {
                    "workload": name,
                    "load": load,
                    "capacity_share": first["load"] and round(first["load"], 2),
                    "capacity_error": first["load"] and round(first["load_error"], 2),
                    "seeds": seeds,
                    "strategies": of_policy,
                }


def of(run, priority):
    """What the requests of a priority got."""
    return next(one for one in run["priorities"] if one["priority"] == priority)


def share_shed(part):
    return part["shed"] / max(part["requests"], 1)


def merged(cell, old):
    """An old cell with the columns of a new one. The loads must be those of before."""
    same = ("workload", "arrivals", "load")
    before = next(one for one in old if all(one.get(key) == cell.get(key) for key in same))
    if "rate" in cell and abs(cell["rate"] / before["rate"] - 1) > 1e-3:
        raise SystemExit(f"{cell['workload']} {cell['load']}: {cell['rate']}/s instead of {before['rate']}/s")
    columns = "policies" if "policies" in cell else "strategies"
    return {**before, columns: {**before[columns], **cell[columns]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--azure-code")
    parser.add_argument("--azure-conv")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=["policies", "goodput", "overload", "worlds"])
    parser.add_argument("--column", choices=sorted({*POLICIES, *STRATEGIES, *WORLD_POLICIES}))
    given = parser.parse_args()
    for column in [given.column] if given.column else []:
        for columns in (POLICIES, STRATEGIES, WORLD_POLICIES):
            text = columns.get(column)
            columns.clear()
            columns.update({column: text} if text else {})
    traces = {"mooncake": MOONCAKE, "azure-code": given.azure_code, "azure-conv": given.azure_conv}
    tables = {
        "policies": lambda: policies(given.binary, traces, given.seeds),
        "goodput": lambda: goodput(given.binary, traces, given.seeds),
        "overload": lambda: overload(given.binary, given.seeds),
        "worlds": lambda: worlds(given.binary, min(given.seeds, 5)),
    }
    columns = {"policies": POLICIES, "goodput": STRATEGIES, "worlds": WORLD_POLICIES}
    for name, cells in tables.items():
        if given.only not in (None, name) or columns.get(name) == {}:
            continue
        path = HERE / f"{name}.json"
        found = []
        for cell in cells():
            found.append(cell)
            print(name, cell["workload"], cell.get("arrivals", ""), cell["load"], flush=True)
        old = json.loads(path.read_text()) if path.exists() else []
        if given.column:
            found = [merged(cell, old) for cell in found]
        new = {(cell["workload"], cell.get("arrivals")) for cell in found}
        kept = [one for one in old if (one["workload"], one.get("arrivals")) not in new]
        lines = ",\n".join(json.dumps(cell) for cell in [*found, *kept])
        path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
