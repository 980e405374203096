"""What a user sees of a bug in the engine of week 3.

Each function imports `tiny_llm` when it is called, and that may be another package each time.
"""

from scripts.checkpoints.files import DRAFT_MODEL, SHIPPED_MODEL
from scripts.checkpoints.models import load_by_name

PROMPTS = (
    "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say",
    "The words of the Preacher, the son of David, king in Jerusalem. Vanity of",
    "Blessed is the man that walketh not in the counsel of the ungodly, nor standeth",
)
BLOCK_SIZE = 8


def full_hit() -> str:
    """Ask the same prompt twice, whose tokens fill their blocks."""
    from tiny_llm import Engine, PrefixCachingBlockManager, SamplingParams

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    prompt = tokenizer.encode(PROMPTS[0])[: 2 * BLOCK_SIZE]
    engine = Engine(model, tokenizer, blocks=PrefixCachingBlockManager(32, BLOCK_SIZE))
    lines = []
    for time in ("first", "second"):
        try:
            (result,) = engine.generate([prompt], SamplingParams(max_tokens=8))
            lines.append(f"the {time} time  {one_line(result.text)}")
        except Exception as error:
            lines.append(f"the {time} time  {type(error).__name__}: {error}")
    return "\n".join(lines)


def collision() -> str:
    """Ask two prompts whose hashes are equal, as happens once in very many times."""
    from tiny_llm import Engine, PrefixCachingBlockManager, SamplingParams

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    lines = []
    for name, first in (("alone", ()), ("after another user's prompt", PROMPTS[1:2])):
        blocks = PrefixCachingBlockManager(64, BLOCK_SIZE, hash_function=lambda parent, tokens: parent + 1)
        engine = Engine(model, tokenizer, blocks=blocks)
        for prompt in first:
            engine.generate([prompt], SamplingParams(max_tokens=4))
        (result,) = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=12))
        lines.append(f"{PROMPTS[0]}|{one_line(result.text)}  ({name})")
    return "\n".join(lines)


def evicted() -> str:
    """Ask a prompt, fill the small pool with others, and ask it again."""
    from tiny_llm import Engine, PrefixCachingBlockManager, SamplingParams

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    engine = Engine(model, tokenizer, max_seq_len=48, blocks=PrefixCachingBlockManager(6, BLOCK_SIZE))
    lines = []
    for prompt in (PROMPTS[0], *PROMPTS[1:], PROMPTS[0]):
        (result,) = engine.generate([prompt], SamplingParams(max_tokens=12))
        lines.append(f"{prompt}|{one_line(result.text)}")
    return "\n".join([lines[0], "  … two other prompts …", lines[-1]])


def preempted() -> str:
    """Ask two prompts at once, with room for both and with too little."""
    from tiny_llm import BlockManager, Engine, SamplingParams

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    lines = []
    for name, num_blocks in (("an idle server ", 32), ("under load     ", 9)):
        engine = Engine(
            model, tokenizer, max_seq_len=64, blocks=BlockManager(num_blocks, BLOCK_SIZE, overcommit=True)
        )
        results = engine.generate(PROMPTS[:2], SamplingParams(max_tokens=24))
        lines.append(f"{name} … Vanity of|{one_line(results[1].text)}")
    return "\n".join(lines)


def hole() -> str:
    """Count the drafts of the small model that are accepted."""
    from tiny_llm import BlockManager, DraftModel, Engine, SamplingParams, with_drafts

    model, tokenizer = load_by_name(SHIPPED_MODEL)
    blocks = BlockManager(64, BLOCK_SIZE)
    drafter = DraftModel(load_by_name(DRAFT_MODEL)[0], blocks, 3)
    engine = Engine(model, tokenizer, blocks=blocks, execution=with_drafts(drafter))
    engine.add_request(PROMPTS[0], SamplingParams(max_tokens=32))
    num_steps = num_accepted = 0
    while engine.has_unfinished_requests:
        step = engine.step()
        num_steps += 1
        num_accepted += sum(map(len, step.accepted.values()))
        text = "".join(one_line(result.text) for result in step.finished)
    return f"{text}\n32 tokens in {num_steps} steps, with {num_accepted} drafts accepted"


def one_line(text: str) -> str:
    """A text without line ends."""
    return text.replace("\n", " ")
