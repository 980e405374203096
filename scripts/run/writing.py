"""One completion by a package, with as much of the package as is written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kernel_runtime.checkpoint import load_tokenizer
from scripts.checkpoints.models import as_chat, fastest_dtype, load_by_name

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Sampling = tuple[float, float, int | None, float, int | None]
"""The first five fields of SamplingParams."""
GREEDY: Sampling = (0.0, 0.0, None, 0.0, None)
LOOPS = {
    "simple_generate_with_kv_cache": "your simple_generate_with_kv_cache.",
    "simple_generate": "your simple_generate. Week 2 day 1 brings a cache, and with it speed.",
}
"""The package's loops, the best one first, and what is said of a text that one of them wrote."""
GIVEN_LOOP = "a given greedy loop. Week 1 day 6 brings a loop of your own."


@dataclass
class Page:
    """The text written so far, which is shown as it comes."""

    pieces: list[str] = field(default_factory=list)

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        print(piece, end="", flush=True)


def write(
    package: ModuleType, checkpoint: Path, text: str, is_chat: bool, max_tokens: int, sampling: Sampling
) -> str:
    """Continue a text with the best loop of the package that is written, and print what comes.

    Returns:
        by: one line that says which loop it was and which day brings a better one.

    Raises:
        NotImplementedError: something is not written that every loop needs.
    """
    sampler = make_sampler(package, sampling)
    model, tokenizer = load(checkpoint)
    prompt = as_chat(tokenizer, text) if is_chat else text
    page = Page()
    for name, by in LOOPS.items():
        try:
            getattr(package, name)(model, tokenizer, prompt, sampler, max_tokens, page.add)
            return f"Written by your model with {by}"
        except NotImplementedError:
            if page.pieces:
                raise
    write_greedily(model, tokenizer, prompt, max_tokens, page.add)
    return f"Written by your model with {GIVEN_LOOP}"


def make_sampler(package: ModuleType, sampling: Sampling) -> Callable[[mx.array], mx.array]:
    """The package's sampler, or a greedy one while that is not written.

    Raises:
        ValueError: an option is out of its range, or needs the package's sampler.
    """
    try:
        sampler: Callable[[mx.array], mx.array] = package.SamplingParams(*sampling).make_sampler()
        return sampler
    except NotImplementedError as error:
        if sampling == GREEDY:
            return lambda logprobs: mx.argmax(logprobs, axis=-1)
        raise ValueError(
            f"--temperature, --top-p, --top-k, --min-p and --seed need your sampler ({error}): leave them out"
        ) from None


def load(checkpoint: Path) -> tuple[Any, "TokenizerWrapper"]:
    """Model and tokenizer, by the package's plain loader if its loader is not written.

    Raises:
        NotImplementedError: neither can read this checkpoint yet.
    """
    try:
        return load_by_name(str(checkpoint))
    except NotImplementedError as error:
        from tiny_llm.model.plain_checkpoint import read_plain_checkpoint
        from tiny_llm.model.plain_loader import build_plain_model

        try:
            config_and_weights = read_plain_checkpoint(checkpoint, fastest_dtype())
        except ValueError:
            raise error from None
        return build_plain_model(*config_and_weights), load_tokenizer(checkpoint)


def write_greedily(
    model: Any,
    tokenizer: "TokenizerWrapper",
    prompt: str | list[int],
    max_tokens: int,
    on_text: Callable[[str], None],
) -> None:
    """The loop for a package that has none yet: the likeliest token, again and again."""
    tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    start, shown = len(tokens), ""
    for _ in range(max_tokens):
        token = mx.argmax(model(mx.array([tokens]), logits_to_keep=1)[0, -1]).item()
        assert isinstance(token, int)
        if token in tokenizer.eos_token_ids:
            break
        tokens.append(token)
        text = tokenizer.decode(tokens[start:])
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the rest of a character is still to come
            on_text(text.removeprefix(shown))
            shown = text
