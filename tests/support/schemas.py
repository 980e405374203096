"""Random JSON schemas, a quick model that writes any text, and the law that finished answers are valid."""

import json
from collections.abc import Sequence as Items
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np

from accelerated.accelerate import engine_operations
from tests.support.engines import drafting_engine
from tiny_llm import (
    BlockManager,
    Engine,
    GenerationResult,
    SamplingParams,
    SchedulerConfig,
    StructuredOutputsParams,
)

Schema = dict[str, Any]
KEYS = ("a", "b", "name", "é", 'say "x"', "", "a b", "\\", "\n")
SCALARS: tuple[Any, ...] = (None, True, False, 0, -3, 7, 2.5, "", "x", "é", 'a"b', "\\n")
PIECES = ('{"', '":', '","', "[]", "null", "true", "false", "ame", "nam", "a b", "10", "é", '"]', '"}', ", ")
END = 0
TOKENS = [b"", *(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES)]
MAX_TOKENS = 300


class ByteTokenizer:
    """A token for each byte, and some longer ones."""

    bos_token = None
    eos_token_ids = {END}
    token_bytes = TOKENS

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    def decode(self, token_ids: Items[int]) -> str:
        return b"".join(TOKENS[token] for token in token_ids if token < len(TOKENS)).decode(errors="replace")


class TableModel:
    """The next token depends on the last one alone: row t of `table` has the logits after t."""

    num_hidden_layers = 1
    config = SimpleNamespace(
        vocab_size=len(TOKENS) + 5, max_position_embeddings=4096
    )  # the model has more ids than the tokenizer
    operations = engine_operations()

    def __init__(self, seed: int) -> None:
        size = self.config.vocab_size
        table = np.random.default_rng(seed).normal(size=(size, size))
        table[:, [1 + ord('"'), 1 + ord("}"), 1 + ord("]")]] += 3  # so that answers end
        table[:, 129:257] -= 3
        self.table = mx.array(table)

    def hidden_states(self, tokens: mx.array, offset: object, caches: object) -> mx.array:
        return tokens

    def logits(self, states: mx.array) -> mx.array:
        return self.table[states]


def random_schema(random: Random, depth: int = 3) -> Schema:
    """A schema of any type; depth limits how far types lie in each other."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    if depth:
        kinds += ["object", "object", "array", "anyOf"]
    kind = random.choice(kinds)
    if kind == "enum":
        return {"enum": random.sample(SCALARS, random.randint(1, 5))}
    if kind == "const":
        return {"const": random.choice([*SCALARS, [1, "x"], {"k": [None]}])}
    if kind == "anyOf":
        return {"anyOf": [random_schema(random, depth - 1) for _ in range(random.randint(1, 3))]}
    schema: Schema = {"type": kind}
    if kind in ("string", "array"):
        names = ("minLength", "maxLength") if kind == "string" else ("minItems", "maxItems")
        least = random.randint(0, 2)
        schema |= dict(zip(names, (least, least + random.randint(0, 3)), strict=True))
    if kind == "array":
        schema["items"] = random_schema(random, depth - 1)
    if kind in ("integer", "number") and random.random() < 0.7:
        least = random.randint(-50, 50)
        schema |= {"minimum": least, "maximum": least + random.randint(0, 200)}
    if kind == "object":
        keys = random.sample(KEYS, random.randint(0, 3))
        schema["properties"] = {key: random_schema(random, depth - 1) for key in keys}
        schema["required"] = [key for key in keys if random.random() < 0.7]
        schema["additionalProperties"] = False
    return schema


@dataclass(frozen=True)
class Asked:
    """A request: a prompt, and a schema unless the answer is free."""

    prompt: str
    params: SamplingParams
    schema: Schema | None = None


def random_requests(random: Random, count: int) -> list[Asked]:
    """Requests with schemas, and a free one for every second of them."""
    requests = []
    for number in range(count):
        schema, temperature = random_schema(random), random.choice([0.0, 0.7, 1.3])
        outputs = StructuredOutputsParams(json=schema, disable_any_whitespace=random.random() < 0.7)
        params = SamplingParams(temperature, seed=number, max_tokens=MAX_TOKENS, structured_outputs=outputs)
        requests.append(Asked(f"schema {number}", params, schema))
        if number % 2:
            requests.append(Asked("free", SamplingParams(1.0, seed=number, max_tokens=40)))
    return requests


def answers(requests: Items[Asked], seed: int, is_speculative: bool) -> list[GenerationResult]:
    """What an engine answers that computes six requests at a time, in a pool that is too small for all."""
    kind = drafting_engine if is_speculative else Engine
    pool, config = BlockManager(60, 8, overcommit=True), SchedulerConfig(24, 6)
    with kind(TableModel(seed), ByteTokenizer(), config, 400, pool) as engine:  # type: ignore[arg-type]
        return engine.generate([each.prompt for each in requests], [each.params for each in requests])


def check_schemas(seed: int, count: int) -> int:
    """Fail unless each finished answer is valid, and free ones are what they are alone; count the finished.

    With drafts, the answers are the same.
    """
    requests = random_requests(Random(seed), count)
    results = answers(requests, seed, False)
    free = [each for each in requests if each.schema is None]
    alone = iter(answers(free, seed, False))
    num_finished = 0
    for request, result in zip(requests, results, strict=True):
        if request.schema is None:
            assert result.token_ids == next(alone).token_ids, "a free answer has changed"
        elif result.finish_reason == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(result.text), request.schema)
    for plain, drafted in zip(results, answers(requests, seed, True), strict=True):
        assert plain.token_ids == drafted.token_ids, f"request {plain.prompt_idx} differs with drafts"
        assert plain.finish_reason == drafted.finish_reason
    return num_finished
