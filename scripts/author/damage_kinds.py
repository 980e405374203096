"""The ways in which `scripts.author.damage` damages a checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

CONFIG = "config.json"
TENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
JSON_FILES = (CONFIG, CONFIG, "generation_config.json", "tokenizer_config.json", "tokenizer.json")
ALL_FILES = (*JSON_FILES, TENSORS)
DEEP = "(nested deeply)"
DEPTHS = (300, 3000, 300_000)
WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2.5, 2**31, 2**63, 10**30, 1e308, float("inf"), float("nan")),
    *("", "8", "yarn", "\ud800", "../config.json", [], [1], ["2", None], {}, {"type": 1}, {"a": {"b": []}}),
    *(DEEP, DEEP),
)
ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
ROPE_KEYS = (
    *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "rope_theta"),
    *("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"),
)
NEW_KEYS = (
    *("rope_scaling", "rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "mlp_bias"),
    *("max_window_layers", "partial_rotary_factor", "rope_traditional", "quantization", "auto_map"),
    "quantization_config",
)

PARTS = ("", "model.", "model.language_model.", "lm_head.", "embed_tokens.", "model.lm_head.embed_tokens.")

Damage = Callable[[Path, Random], str]


def damage(folder: Path, random: Random) -> str:
    """Damage the checkpoint of a folder in one way, and say in which."""
    return random.choice(KINDS)(folder, random)


def change_value(folder: Path, random: Random) -> str:
    """Another value at some place of a JSON file."""
    file, value = random.choice(JSON_FILES), random.choice(WRONG)
    content = json.loads((folder / file).read_text())
    place = change(content, random, value)
    write(folder / file, content, random)
    return f"{file} with {value!r} as {place}"


def drop_value(folder: Path, random: Random) -> str:
    """One value less in a JSON file."""
    file = random.choice(JSON_FILES)
    content = json.loads((folder / file).read_text())
    parent, key, place = walk(content, random)
    del parent[key]
    write(folder / file, content, random)
    return f"{file} without {place}"


def add_key(folder: Path, random: Random) -> str:
    """A key of config.json that the shipped one does not have, or has with another value."""
    key, value = random.choice(NEW_KEYS), random.choice(WRONG)
    if random.random() < 0.5:
        value = {"rope_type": random.choice(ROPE_KINDS)}
        for name in random.sample(ROPE_KEYS, 5):
            value[name] = random.choice([*WRONG, 2, 4.0, 32])
        key = random.choice(("rope_scaling", "rope_parameters"))
    content = {**json.loads((folder / CONFIG).read_text()), key: value}
    write(folder / CONFIG, content, random)
    return f"{CONFIG} with {value!r} as {key}"


def flip_bytes(folder: Path, random: Random) -> str:
    """Other bytes in the place of a few."""
    file = random.choice(ALL_FILES)
    content = bytearray((folder / file).read_bytes())
    end = len(content) if random.random() < 0.5 else min(20_000, len(content))  # a header is at the start
    places = [random.randrange(end) for _ in range(random.choice((1, 1, 2, 8)))]
    for place in places:
        content[place] = random.randrange(256)
    (folder / file).write_bytes(content)
    return f"{file} with other bytes at {places}"


def cut_short(folder: Path, random: Random) -> str:
    """A file without its end, or one that is empty."""
    file = random.choice(ALL_FILES)
    content = (folder / file).read_bytes()
    size = random.choice((0, 7, 8, random.randrange(len(content))))
    (folder / file).write_bytes(content[:size])
    return f"{file} with {size} bytes alone"


def replace_file(folder: Path, random: Random) -> str:
    """No file, a folder in its place, or one with something else in it."""
    file = random.choice(ALL_FILES)
    (folder / file).unlink()
    what = random.choice(("nothing", "a folder", "\x00" * 50, "[" * 100_000, "[]", "null", "{}", "\ufeff{}"))
    if what == "a folder":
        (folder / file).mkdir()
    elif what != "nothing":
        (folder / file).write_text(what, encoding="utf-8")
    return f"{file}, {what[:20]!r} in its place"


def change_header(folder: Path, random: Random) -> str:
    """Another value, or one less, in the header of the tensors."""
    content = (folder / TENSORS).read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, value = (
        json.loads(content[8 : 8 + size]),
        random.choice((*WRONG, "F16", "F64", "F8_E4M3", "I32", [4096, 48])),
    )
    if random.random() < 0.2:
        parent, key, place = walk(header, random)
        del parent[key]
    else:
        place = change(header, random, value)
    text = dump(header, random).encode()
    claimed = len(text) if random.random() < 0.8 else random.choice((0, 2**40, 2**63, len(text) + 1))
    (folder / TENSORS).write_bytes(claimed.to_bytes(8, "little") + text + content[8 + size :])
    return f"{TENSORS} with {value!r} as {place} of its header, whose size is said to be {claimed}"


def change_index(folder: Path, random: Random) -> str:
    """An index of shards that is damaged, over a checkpoint of one file."""
    weight_map = dict.fromkeys(("model.norm.weight", "model.embed_tokens.weight"), TENSORS)
    index: dict[str, Any] = {"metadata": {}, "weight_map": weight_map}
    value = random.choice(WRONG)
    place = change(index, random, value)
    write(folder / INDEX, index, random)
    return f"{INDEX} with {value!r} as {place}"


def rename_tensors(folder: Path, random: Random) -> str:
    """Another name of the file with the tensors, or of some of the tensors in it."""
    if random.random() < 0.3:
        names = ("model-00001-of-00002.safetensors", "model-00001-of-99999.safetensors", "weights.npz")
        name = random.choice(names)
        (folder / TENSORS).rename(folder / name)
        return f"{TENSORS} under the name {name}"
    content = (folder / TENSORS).read_bytes()
    size = int.from_bytes(content[:8], "little")
    old, new = random.choice(("model.", "model.embed_tokens.", "mlp.", "weight")), random.choice(PARTS)
    text = content[8 : 8 + size].decode().replace(old, new).encode()
    (folder / TENSORS).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return f"{TENSORS} with {new!r} for {old!r} in the names of its tensors"


KINDS: tuple[Damage, ...] = (
    *(change_value, change_value, drop_value, add_key, flip_bytes),
    *(cut_short, replace_file, change_header, change_index, rename_tensors),
)


def change(content: Any, random: Random, value: Any) -> str:
    """Put a value at a random place of a JSON content; return the place."""
    parent, key, place = walk(content, random)
    parent[key] = value
    return place


def walk(content: Any, random: Random) -> tuple[Any, Any, str]:
    """A random place: what holds it, its key there, and its name."""
    names = []
    while True:
        key = random.choice(list(content) if isinstance(content, dict) else range(len(content)))
        names.append(str(key))
        if not content[key] or not isinstance(content[key], dict | list) or random.random() < 0.4:
            return content, key, ".".join(names)
        content = content[key]


def write(file: Path, content: Any, random: Random) -> None:
    """Write a JSON file."""
    file.write_text(dump(content, random), encoding="utf-8")


def dump(content: Any, random: Random) -> str:
    """A content as JSON, with values that nothing could dump in the place of `DEEP`."""
    depth = random.choice(DEPTHS)
    return json.dumps(content).replace(f'"{DEEP}"', "[" * depth + "]" * depth)
