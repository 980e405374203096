"""An answer under a JSON schema, token by token: how many tokens its grammar allows, and which it forces."""

import json
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from kernel_runtime.checkpoint import load_tokenizer
from tiny_llm_ref import StructuredOutputsParams
from tiny_llm_ref.structured.grammars import compile_grammar
from tiny_llm_ref.structured.masks import MaskedRow, fill_masks

MODEL = Path("models/qwen3-kjv-4m")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "office": {"enum": ["king", "prophet", "judge"]},
    },
    "required": ["name", "office"],
    "additionalProperties": False,
}
ANSWER = '{"name":"Ruth","office":"judge"}'
ORANGE = "#d97a1f"
LEFT, GAP, HEIGHT = 4, 3, 24
PER_ROW = 8
MONO = "font-family: var(--mono-font, monospace)"


@dataclass(frozen=True)
class Place:
    """A token of the answer, how many tokens were allowed there, and whether it was forced."""

    text: str
    num_allowed: int
    is_forced: bool


def run() -> list[Place]:
    """Let a constraint read the answer."""
    tokenizer = load_tokenizer(MODEL)
    params = StructuredOutputsParams(json=json.dumps(SCHEMA), disable_any_whitespace=True)
    constraint = compile_grammar(params, tokenizer)
    places = []
    for token in [*tokenizer.encode(ANSWER, add_special_tokens=False), min(tokenizer.eos_token_ids)]:
        mask = int.from_bytes(fill_masks([MaskedRow(0, constraint)]).tobytes(), "little")
        is_end = token in tokenizer.eos_token_ids
        text = "end" if is_end else tokenizer.decode([token])
        places.append(Place(text, mask.bit_count(), token in constraint.forced_tokens()[:1]))
        if not is_end:
            constraint.advance([token])
    return places


def drawn(place: Place, x: float, y: float, width: float) -> str:
    """A token in its frame, with the number of tokens allowed there below."""
    frame = (
        f'fill="{ORANGE}" fill-opacity="0.25" stroke="{ORANGE}"'
        if place.is_forced
        else 'fill="none" stroke="currentColor" stroke-opacity="0.6"'
    )
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="3" {frame}/>'
        f'<text x="{x + width / 2}" y="{y + 16}" text-anchor="middle" style="{MONO}">'
        f"{escape(place.text)}</text>"
        f'<text x="{x + width / 2}" y="{y + HEIGHT + 14}" text-anchor="middle" fill-opacity="0.7">'
        f"{place.num_allowed:,}</text>"
    )


def main() -> None:
    """Print the figure."""
    places = run()
    width = 42
    rows = [places[start : start + PER_ROW] for start in range(0, len(places), PER_ROW)]
    boxes = "".join(
        drawn(place, LEFT + column * (width + GAP), 6 + 52 * number, width)
        for number, row in enumerate(rows)
        for column, place in enumerate(row)
    )
    num_forced = sum(place.is_forced for place in places)
    height = 52 * len(rows) + 42
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + PER_ROW * (width + GAP)} {height}" '
        'fill="currentColor" font-size="11" role="img">'
        "<title>An answer under a JSON schema</title>"
        f"<desc>The {len(places)} tokens of {escape(ANSWER)} and its end, with the number of tokens that the "
        f"grammar allows at each. {num_forced} of them are forced.</desc>"
        f"{boxes}"
        f'<g fill-opacity="0.7"><text x="{LEFT}" y="{height - 24}">below each token: how many of 4,096 the '
        f'grammar allows</text><text x="{LEFT}" y="{height - 8}">{num_forced} of {len(places)} tokens are '
        "forced</text></g>"
        "</svg>"
    )


if __name__ == "__main__":
    main()
