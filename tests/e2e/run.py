#!/usr/bin/env python3
"""Run the end-to-end cases: real engines, penstock in front of them, real SDKs.

    python run.py --penstock PATH --work DIR [--tls CA CERT KEY] [--only NAME]... [--list]

With `--penstock none` the cases that make sense without it run straight against one engine:
that shows what the engine itself responds.  One line per case (`ok`, `FAIL`, `skip`); the
last line is `e2e: N run, M skipped: REASON`.  Exit code 1 when a case failed.
"""
import argparse
import importlib
import importlib.util
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Callable, Iterator

# The tests lie in a source tree: leave no caches there.
sys.dont_write_bytecode = True

MODULES = (
    "catalogue", "chat", "operations", "fidelity", "routing", "errors", "limits", "auth", "cancel",
    "load", "faults", "paths", "tls", "dashboard", "prefix", "telemetry", "ollama", "context",
    "ensembles", "ollama_clients", "queue", "teams",
)
NEEDED = ("gguf", "numpy", "xllamacpp", "openai", "anthropic", "ollama", "yaml", "h2", "langchain_ollama")
# A busy machine needs several times as long as an idle one.
CASE_LIMIT = 120.0
RUN_LIMIT = 600.0


class OutOfTime(Exception):
    """A case, or the run, took longer than it may."""


def collect() -> Iterator[tuple[str, Callable]]:
    """Every case with its name, in the order of the files."""
    for module in MODULES:
        for name, value in vars(importlib.import_module(f"cases.{module}")).items():
            if name.startswith("case_"):
                yield name.removeprefix("case_"), value


def to_line(error: BaseException) -> str:
    """An error as one bounded line."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return (text if isinstance(error, AssertionError) and text else f"{kind}: {text}")[:400]


def on_alarm(*_: object) -> None:
    """The clock of the running case rang."""
    raise OutOfTime("the case took too long")


def on_term(*_: object) -> None:
    """Leave through `finally`, so that no process is left running."""
    sys.exit(143)


def run_case(case: Callable, env: object, deadline: float) -> None:
    """One case under its clock."""
    left = min(CASE_LIMIT, deadline - time.monotonic())
    if left <= 0:
        raise OutOfTime(f"the run took longer than {RUN_LIMIT:g} s")
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        case(env)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(env: object, chosen: list[tuple[str, Callable]], deadline: float) -> int:
    """Run the cases, report each, and return how many failed."""
    from env import Skip

    done = failed = 0
    reasons: list[str] = []
    try:
        env.start()
    except Exception as error:  # without engines there is nothing to run
        traceback.print_exc()
        print(f"FAIL start: {to_line(error)}", flush=True)
        summarize(0, ["the engines did not start"] * len(chosen))
        return 1
    for name, case in chosen:
        began = time.monotonic()
        try:
            run_case(case, env, deadline)
        except Skip as skip:
            reasons.append(str(skip))
            print(f"skip {name}: {skip}", flush=True)
            continue
        except Exception as error:  # whatever a case raises is that case's failure
            failed += 1
            traceback.print_exc()
            print(f"FAIL {name}: {to_line(error)}", flush=True)
        else:
            print(f"ok {name}", flush=True)
        done += 1
        print(f"{name}: {time.monotonic() - began:.2f} s", file=sys.stderr)
    summarize(done, reasons)
    return failed


def summarize(done: int, reasons: list[str]) -> None:
    """The last line of every run."""
    reason = "; ".join(sorted(set(reasons))) or "none"
    print(f"e2e: {done} run, {len(reasons)} skipped: {reason}", flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", help="the binary, or `none`")
    parser.add_argument("--work", type=Path, help="where models, configurations and logs go")
    parser.add_argument("--tls", type=Path, nargs=3, metavar=("CA", "CERT", "KEY"),
                        help="PEM files: an authority, a certificate it signed for 127.0.0.1, and the key")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()

    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        summarize(0, [f"not installed: {', '.join(missing)}"])
        return 0
    chosen = [(n, c) for n, c in collect() if not options.only or n in options.only]
    if options.list:
        print("\n".join(name for name, _ in chosen))
        return 0
    if options.penstock is None or not chosen:
        parser.error("--penstock is needed" if chosen else "no case of that name")

    from env import Certificates, Env

    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGTERM, on_term)
    deadline = time.monotonic() + RUN_LIMIT
    binary = None if options.penstock == "none" else Path(options.penstock).resolve()
    work = options.work or Path(tempfile.mkdtemp(prefix="penstock-e2e-"))
    work.mkdir(parents=True, exist_ok=True)
    tls = Certificates(*(path.resolve() for path in options.tls)) if options.tls else None
    env = Env(binary, work.resolve(), tls)
    try:
        return 1 if run(env, chosen, deadline) else 0
    finally:
        env.close()


if __name__ == "__main__":
    sys.exit(main())
