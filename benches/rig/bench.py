#!/usr/bin/env python3
"""Measures penstock beside nginx, HAProxy and the least a Pingora proxy can be; see README.md.

Prints one line of JSON per measurement and the tables at the end. Exits with 1 if a request failed.
"""
import argparse
import contextlib
import datetime
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import measures  # noqa: E402
import peers as proxies  # noqa: E402
import processes  # noqa: E402
import table  # noqa: E402

TARGET = HERE.parent.parent / "target" / "rig"
PARTS = [*measures.SCENARIOS, "memory", "idle", "stalled", "cancel"]
PEERS = ["penstock", "floor", "nginx", "haproxy"]
# penstock with `weighted` instead of `smart`, and with `smart` and `weighted` in its shadow; only where
# named by --peers.
ALL_PEERS = [*PEERS, "weighted", "shadow"]
BACKENDS = 4
MEMORY_ROUNDS = 3


def names(known):
    def parse(text):
        chosen = text.split(",")
        wrong = [name for name in chosen if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"no {', '.join(wrong)} among {', '.join(known)}")
        return [name for name in known if name in chosen]
    return parse


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True, help="the program to measure")
    parser.add_argument("--floor", type=Path, help="an earlier penstock, in the place of the floor")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--slices", type=int, default=1,
                        help="runs of the clients in each round, proxy by proxy in turn: many short ones"
                             " tell proxies apart that differ by little, where the machine's speed varies")
    parser.add_argument("--seconds", type=float, default=5, help="of each run of the clients")
    parser.add_argument("--only", type=names(PARTS), default=PARTS, help=",".join(PARTS))
    parser.add_argument("--peers", type=names(ALL_PEERS), default=PEERS, help=",".join(ALL_PEERS))
    parser.add_argument("--out", type=Path, help="also write the lines of JSON here")
    chosen = parser.parse_args()
    for name in ("penstock", "floor"):
        program = getattr(chosen, name) and getattr(chosen, name).resolve()
        if program and (not os.access(program, os.X_OK) or program.is_dir()):
            parser.error(f"{program} is no program")
        setattr(chosen, name, program)
    return chosen


def build():
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "--bins",
                    "--manifest-path", HERE / "Cargo.toml", "--target-dir", TARGET], check=True)
    return TARGET / "release"


class Run:
    """One run of the bench: its processes and results."""

    def __init__(self, chosen, rig):
        self.chosen, self.rig, self.rows = chosen, rig, []
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            raise SystemExit("the rig needs two CPUs: one for the proxy, one for both its ends")
        self.rig_cpu, proxy_cpu = cpus[:2]
        os.sched_setaffinity(0, {self.rig_cpu})
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        ports = processes.free_ports(BACKENDS + len(proxies.DOORS) * len(ALL_PEERS))
        self.backends, rest = ports[:BACKENDS], ports[BACKENDS:]
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-rig-")
        certificate = Path(self.folder.name)
        subprocess.run([rig / "certificate", certificate], check=True)
        self.peers = []
        for peer in proxies.known(chosen.penstock, rig, chosen.floor).values():
            if peer.name not in chosen.peers:
                continue
            if not proxies.is_installed(peer.name):
                print(f"{peer.name} is not installed: skipped", file=sys.stderr)
                continue
            doors = {door: rest.pop() for door in proxies.DOORS}
            peer.place(doors, self.backends, proxy_cpu, certificate)
            self.peers.append(peer)
        self.out = chosen.out.open("w") if chosen.out else None

    def emit(self, row):
        self.rows.append(row)
        text = json.dumps(row)
        print(text, flush=True)
        if self.out:
            print(text, file=self.out, flush=True)

    def engine(self):
        return proxies.Engine(self.rig, self.backends, self.rig_cpu)

    def setup(self):
        model = [line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")]
        self.emit({"kind": "setup", "date": datetime.date.today().isoformat(), "cpu": model[0] if model else platform.machine(),
                   "cpus": os.cpu_count(), "kernel": platform.release(),
                   "rounds": self.chosen.rounds, "slices": self.chosen.slices,
                   "seconds": self.chosen.seconds,
                   "versions": {peer.name: peer.version() for peer in self.peers}})

    def cpu(self, scenarios):
        """Restarts every proxy each round; within a round, scenarios run in turn."""
        for index in range(self.chosen.rounds):
            with self.engine() as engine:
                self.cpu_round(engine, scenarios, index)

    def cpu_round(self, engine, scenarios, index):
        with contextlib.ExitStack() as running:
            for peer in self.peers:
                running.enter_context(peer)
            for scenario in scenarios:
                for turn in range(index * self.chosen.slices, (index + 1) * self.chosen.slices):
                    for peer in in_turn(self.peers, turn):
                        row = measures.cpu_per_unit(peer, engine, scenario, self.chosen.seconds)
                        self.emit({**row, "round": turn})

    def memory(self, measure):
        """A fresh proxy for every figure, so that no run affects the next."""
        for index in range(min(self.chosen.rounds, MEMORY_ROUNDS)):
            for peer in in_turn(self.peers, index):
                with self.engine() as engine, peer:
                    self.emit({**measure(peer, engine), "round": index})

    def cancel(self):
        """penstock's figure, and how much of it is the rig's own."""
        with self.engine() as engine:
            for row in measures.cancels("no proxy", self.backends[0], engine):
                self.emit(row)
            for peer in self.peers:
                if peer.name == "penstock":
                    with peer:
                        for row in measures.cancels(peer.name, peer.port, engine):
                            self.emit(row)


def in_turn(peers, index):
    """Every peer is first, last and in between equally often, in both directions."""
    first = index % len(peers)
    turned = peers[first:] + peers[:first]
    return turned[::-1] if index // len(peers) % 2 else turned


def main():
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(chosen, build())
    run.setup()
    scenarios = [name for name in chosen.only if name in measures.SCENARIOS]
    if scenarios:
        run.cpu(scenarios)
    for part, measure in (("memory", measures.memory), ("idle", measures.idle_connections),
                          ("stalled", measures.stalled_readers)):
        if part in chosen.only:
            run.memory(measure)
    if "cancel" in chosen.only:
        run.cancel()
    print("\n" + table.tables(run.rows, [peer.name for peer in run.peers]))
    return 1 if any(row.get("errors") for row in run.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
