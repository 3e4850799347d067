#!/usr/bin/env python3
"""Write a tiny, randomly initialised llama-architecture GGUF.

No weights are downloaded: every number comes from a seed, and the same seed gives the
same bytes.  The file (0.66 MB by default) is a valid model that a real llama.cpp server
loads in well under a second and samples from at thousands of tokens per second.

    python tiny_gguf.py out.gguf [--seed 1] [--ctx 512] [--chat plain|tools|think] [--eos P]

How the output stays readable: hidden dimension 0 is a constant lane (every embedding has
the same value there and no layer writes to it), so the output matrix can push byte and
control tokens far below every printable word.

--eos P   the end token comes with about chance P per step (0 = never: generation runs
          until max_tokens or a stop string; "tools" and "think" default to 0.05).
--chat    "tools" can make real tool calls (ask for tool_choice "required" and
          max_tokens >= 150), "think" emits reasoning first.
Slow it down with --dim/--layers: about 6000 tokens/s by default, 1400 at --dim 256
--layers 4 --heads 8 --ffn 768, 130 at --dim 512 --layers 8 --heads 8 --ffn 1536.
"""
import argparse
import math
from dataclasses import dataclass, field

import numpy as np
from gguf import GGUFWriter, TokenType

# The whole opening of a call is one token: one lucky sample starts a real call and
# llama.cpp's grammar then forces the rest of it (name, arguments, closing tag).
CALL = '<tool_call>\n{"name": "'
SPACE = "\u2581"

_TEXT = (
    "{% if m['content'] is string %}{{ m['content'] }}{% elif m['content'] %}"
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
)
_END = "{{ '<|end|>\\n' }}{% endfor %}"
_OPEN = "{% if add_generation_prompt %}<|assistant|>"
_MESSAGE = "{% for m in messages %}<|{{ m['role'] }}|>"
_CALLS = (
    "{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}<tool_call>\n"
    "{\"name\": \"{{ c['function']['name'] }}\", "
    "\"arguments\": {{ c['function']['arguments'] | tojson }}}\n"
    "</tool_call>{% endfor %}{% endif %}"
)
# llama.cpp works out from the template alone how a model writes tool calls and reasoning,
# so a random model can still produce both.
TEMPLATES = {
    "plain": _MESSAGE + _TEXT + _END + _OPEN + "{% endif %}",
    "tools": (
        "{% if tools %}<|system|># Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}"
        "{% endfor %}\n</tools>\n{% endif %}"
        + _MESSAGE + _TEXT + _CALLS + _END + _OPEN + "{% endif %}"
    ),
    "think": (
        _MESSAGE
        + "{% if m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}\n</think>\n{% endif %}"
        + _TEXT + _END + _OPEN
        + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n"
        "{% else %}<think>\n{% endif %}{% endif %}"
    ),
}

WORDS = (
    "the a of and to in is it on as at by for from with that this was are be not or an if so "
    "red blue green fast slow big small river stone light water cloud tree house road wind fire "
    "one two three four five six seven eight nine ten north south east west day night sun moon "
    "read write send wait load free busy queue token model server route cache slot batch"
).split()


@dataclass
class Recipe:
    """What to write: everything that shapes the file."""

    name: str = "tiny"
    seed: int = 1
    ctx: int = 512
    dim: int = 64
    layers: int = 2
    heads: int = 4
    ffn: int = 128
    chat: str = "plain"
    eos: float | None = None
    tool: float = 0.1
    unthink: float = 0.1

    def end_chance(self) -> float:
        """The chance of the end token per step."""
        if self.eos is not None:
            return self.eos
        return 0.0 if self.chat == "plain" else 0.05


@dataclass
class Vocabulary:
    """Token texts with their kinds and merge scores; the first `special` never come out."""

    texts: list[bytes] = field(default_factory=list)
    kinds: list[TokenType] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    special: int = 0

    def add(self, text: str, kind: TokenType, score: float = 0.0) -> None:
        """Append one token."""
        self.texts.append(text.encode())
        self.kinds.append(kind)
        self.scores.append(score)


def build_vocabulary() -> Vocabulary:
    """Control and byte tokens, printable ASCII, and the words with all their prefixes."""
    vocabulary = Vocabulary()
    vocabulary.add("<unk>", TokenType.UNKNOWN)
    vocabulary.add("<s>", TokenType.CONTROL)
    vocabulary.add("</s>", TokenType.CONTROL)
    for byte in range(256):
        vocabulary.add(f"<0x{byte:02X}>", TokenType.BYTE)
    for text in (CALL, "<think>", "</think>"):
        vocabulary.add(text, TokenType.USER_DEFINED)
    vocabulary.special = len(vocabulary.texts)
    vocabulary.add(SPACE, TokenType.NORMAL, -1.0)
    for code in range(0x21, 0x7F):
        vocabulary.add(chr(code), TokenType.NORMAL, -2.0)
    for word in WORDS:
        # The tokenizer merges pairs, so every prefix must exist; the score is the priority.
        for length in range(2, len(word) + 1):
            if word[:length].encode() not in vocabulary.texts:
                vocabulary.add(word[:length], TokenType.NORMAL, -3.0 - length)
        vocabulary.add(SPACE + word, TokenType.NORMAL, -1.5)
    return vocabulary


def write_model(path: str, recipe: Recipe) -> None:
    """Write the model `recipe` describes to `path`."""
    vocabulary = build_vocabulary()
    rng = np.random.default_rng(recipe.seed)

    def noise(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale / math.sqrt(shape[-1])).astype(np.float32)

    writer = GGUFWriter(path, "llama")
    _write_head(writer, recipe, vocabulary)
    dim, ffn = recipe.dim, recipe.ffn
    embedding = noise(len(vocabulary.texts), dim, scale=math.sqrt(dim))
    embedding[:, 0] = 4.0
    writer.add_tensor("token_embd.weight", embedding)
    shapes = {
        "attn_q": (dim, dim), "attn_k": (dim, dim), "attn_v": (dim, dim),
        "attn_output": (dim, dim), "ffn_gate": (ffn, dim), "ffn_up": (ffn, dim),
        "ffn_down": (dim, ffn),
    }
    for layer in range(recipe.layers):
        prefix = f"blk.{layer}."
        writer.add_tensor(prefix + "attn_norm.weight", np.ones(dim, np.float32))
        writer.add_tensor(prefix + "ffn_norm.weight", np.ones(dim, np.float32))
        for name, shape in shapes.items():
            matrix = noise(*shape)
            if name in ("attn_output", "ffn_down"):
                matrix[0, :] = 0.0  # nothing writes to the constant lane
            writer.add_tensor(f"{prefix}{name}.weight", matrix)
    writer.add_tensor("output_norm.weight", np.ones(dim, np.float32))
    writer.add_tensor("output.weight", _output_matrix(noise, recipe, vocabulary))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_head(writer: GGUFWriter, recipe: Recipe, vocabulary: Vocabulary) -> None:
    writer.add_name(recipe.name)
    writer.add_context_length(recipe.ctx)
    writer.add_embedding_length(recipe.dim)
    writer.add_block_count(recipe.layers)
    writer.add_feed_forward_length(recipe.ffn)
    writer.add_head_count(recipe.heads)
    writer.add_head_count_kv(recipe.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(recipe.dim // recipe.heads)
    writer.add_vocab_size(len(vocabulary.texts))
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocabulary.texts)
    writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATES[recipe.chat])


def _output_matrix(noise, recipe: Recipe, vocabulary: Vocabulary) -> np.ndarray:
    texts = vocabulary.texts
    words = [i for i, t in enumerate(texts) if t.startswith(SPACE.encode()) and len(t) > 3]
    out = noise(len(texts), recipe.dim, scale=2.5)
    out[:, 0] = -2.0  # printable pieces: unlikely
    out[words, 0] = 1.0  # whole words: likely
    out[: vocabulary.special, :] = 0.0
    out[: vocabulary.special, 0] = -50.0  # bytes and control: never
    # Words sit near the constant lane's value plus noise; a special token is placed
    # relative to the logarithm of their summed weight.
    lane = 4.0 / math.sqrt((16.0 + (recipe.dim - 1) * (1 + 2 * recipe.layers)) / recipe.dim)
    total = lane + math.log(len(words)) + 0.5 * 2.5**2

    def place(token: str, chance: float) -> None:
        if chance > 0:
            logit = total + math.log(chance / (1 - chance))
            out[texts.index(token.encode()), 0] = logit / lane

    place("</s>", recipe.end_chance())
    if recipe.chat == "tools":
        place(CALL, recipe.tool)
    if recipe.chat == "think":
        place("</think>", recipe.unthink)
    return out


def main() -> None:
    """The command line: one option per field of `Recipe`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--name", default="tiny")
    parser.add_argument("--chat", choices=sorted(TEMPLATES), default="plain")
    for option in ("seed", "ctx", "dim", "layers", "heads", "ffn"):
        parser.add_argument(f"--{option}", type=int, default=getattr(Recipe, option))
    parser.add_argument("--eos", type=float, help="chance of the end token per step")
    parser.add_argument("--tool", type=float, default=Recipe.tool, help="chance of a tool call")
    parser.add_argument("--unthink", type=float, default=Recipe.unthink, help="chance that reasoning ends")
    options = vars(parser.parse_args())
    out = options.pop("out")
    write_model(out, Recipe(**options))
    print(out)


if __name__ == "__main__":
    main()
