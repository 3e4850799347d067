#!/usr/bin/env python3
"""Run one or more real llama.cpp servers in this process (the wheel `xllamacpp` embeds it).

    python tiny_server.py a.gguf:0:parallel=4,ctx=4096,alias=m b.gguf:18082

Each argument is MODEL.gguf:PORT[:key=value,...] with the keys
    alias, host, parallel, ctx (total, split over the slots), key (API key), embed (0/1),
    predict (server-side cap), sleep (idle seconds before the model sleeps), ping (SSE ping
    seconds), threads, http (HTTP threads), batch (prompt tokens per step), cache (0: no
    prompt cache, so equal requests give equal responses), verbosity
Port 0 picks a free port.  Prints one JSON line per server once it responds, then waits.
SIGTERM and SIGINT end the process at once; with --with-parent so does the end of stdin, so
that engines never outlive a killed test run.
"""
import json
import os
import signal
import sys
import traceback

import xllamacpp


def to_params(spec: str) -> xllamacpp.CommonParams:
    """The server parameters one argument stands for."""
    path, port, *rest = spec.split(":", 2)
    options = dict(pair.split("=", 1) for pair in rest[0].split(",")) if rest else {}

    def number(key: str, default: int) -> int:
        return int(options.get(key, default))

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {options.get("alias", os.path.basename(path).rsplit(".", 1)[0])}
    params.hostnames = [options.get("host", "127.0.0.1")]
    params.port = int(port)
    params.n_parallel = number("parallel", 2)
    params.n_ctx = number("ctx", 2048)
    params.n_predict = number("predict", -1)
    params.n_threads_http = number("http", -1)
    params.verbosity = number("verbosity", 1)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = number("threads", 1)
    params.endpoint_metrics = params.endpoint_props = params.endpoint_slots = True
    params.n_gpu_layers = 0
    params.cache_ram_mib = 0
    params.ui = False
    params.warmup = False
    params.cache_prompt = bool(number("cache", 1))
    if "batch" in options:
        params.n_batch = params.n_ubatch = number("batch", 0)
    if "key" in options:
        params.api_keys = [options["key"]]
    if number("embed", 0):
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    if "sleep" in options:
        params.sleep_idle_seconds = number("sleep", -1)
    if "ping" in options:
        params.sse_ping_interval = number("ping", 0)
    return params


def serve(specs: list[str], with_parent: bool) -> None:
    """Start every server and wait."""
    servers = []
    for params in map(to_params, specs):
        servers.append(xllamacpp.Server(params))
        line = {
            "url": servers[-1].listening_address,
            "alias": sorted(params.model_alias)[0],
            "pid": os.getpid(),
        }
        print(json.dumps(line), flush=True)
    if with_parent:
        sys.stdin.buffer.read()
        return
    while True:
        signal.pause()


def main() -> None:
    """The command line."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    specs = [argument for argument in sys.argv[1:] if argument != "--with-parent"]
    try:
        serve(specs, with_parent=len(specs) < len(sys.argv) - 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # No tidy exit: taking a server apart waits for its threads, which may never end.
    os._exit(0)


if __name__ == "__main__":
    main()
