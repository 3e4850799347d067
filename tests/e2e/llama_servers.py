#!/usr/bin/env python3
"""llama.cpp's own server program, and random models big enough to cost a GPU time, for real_engines.py.

    python llama_servers.py OUT.gguf [--dim 3072] [--layers 28] [--heads 24] [--kv-heads 4] [--ffn 8192] [--ctx 8192]

The model has weights of 16 bits and the tokens of tiny_gguf.py. All its layers have the same random weights: that
costs a GPU what different ones cost, and is written in seconds. 5.4 GB by default.
"""
import argparse
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

import tiny_gguf
import wire
from processes import end

# Of the model's file, and of the GPU's library.
START_LIMIT = 120.0


def write_model(path: str, recipe: tiny_gguf.Recipe, kv_heads: int) -> None:
    """Write a model whose heads share keys and values."""
    vocabulary, rng = tiny_gguf.build_vocabulary(), np.random.default_rng(recipe.seed)

    def noise(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape, np.float32) * np.float32(scale / math.sqrt(shape[-1]))).astype(np.float16)

    dim, ffn, shared = recipe.dim, recipe.ffn, recipe.dim // recipe.heads * kv_heads
    writer = GGUFWriter(path, "llama")
    tiny_gguf._write_head(writer, recipe, vocabulary)
    writer.kv_data[0]["llama.attention.head_count_kv"].value = kv_heads
    writer.kv_data[0]["general.file_type"].value = 1
    embedding = noise(len(vocabulary.texts), dim, scale=math.sqrt(dim))
    embedding[:, 0] = 4.0
    writer.add_tensor("token_embd.weight", embedding)
    shapes = {
        "attn_q": (dim, dim), "attn_k": (shared, dim), "attn_v": (shared, dim), "attn_output": (dim, dim),
        "ffn_gate": (ffn, dim), "ffn_up": (ffn, dim), "ffn_down": (dim, ffn),
    }
    matrices = {name: noise(*shape) for name, shape in shapes.items()}
    for name in ("attn_output", "ffn_down"):
        matrices[name][0, :] = 0.0  # nothing writes to the constant lane
    for layer in range(recipe.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(dim, np.float32))
        for name, matrix in matrices.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix)
    writer.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    writer.add_tensor("output.weight", tiny_gguf._output_matrix(noise, recipe, vocabulary))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaServer:
    """A process of the program `llama-server`, with all layers on a GPU if it has one."""

    def __init__(self, binary: Path, model: Path, alias: str, log: Path, slots: int, context: int) -> None:
        port = wire.free_port()
        command = [
            str(binary), "--model", str(model), "--alias", alias, "--host", "127.0.0.1", "--port", str(port),
            "--parallel", str(slots), "--ctx-size", str(slots * context), "--gpu-layers", "99", "--fit", "off",
            "--metrics", "--slots", "--no-webui", "--cache-ram", "0", "--threads", "2", "--threads-http", "64",
        ]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.url, self._log = f"http://127.0.0.1:{port}", log

    def await_ready(self) -> "LlamaServer":
        """Block until the model is loaded."""
        def is_loaded() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the engine ended, see {self._log}")
            return wire.fetch(self.url + "/health").status == 200

        wire.wait_until("the engine", is_loaded, START_LIMIT, every=0.2)
        return self

    def close(self) -> None:
        """End it."""
        end(self.process)


def main() -> None:
    """Write a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    sizes = {"dim": 3072, "layers": 28, "heads": 24, "kv-heads": 4, "ffn": 8192, "ctx": 8192}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    out, kv_heads = options.pop("out"), options.pop("kv_heads")
    write_model(out, tiny_gguf.Recipe(name="random", **options), kv_heads)


if __name__ == "__main__":
    sys.exit(main())
