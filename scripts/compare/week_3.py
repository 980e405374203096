"""The cases of `pdm run compare` for week 3."""

import importlib

import mlx.core as mx
import numpy as np

from kernel_runtime.block_layout import BlockLayout
from scripts.compare.differences import Tree
from scripts.compare.inputs import ByteTokenizer, fitting, normal, small_model, token_ids
from scripts.compare.library import Case, Library, gpu_cases

BLOCK_SIZE = 16
Counts = tuple[tuple[int, ...], tuple[int, ...]]  # queries and keys of each sequence
MIXED: Counts = (64, 1, 1, 1, 1, 1), (300, 100, 200, 50, 700, 30)
LONG: Counts = (64, 1, 1, 1, 1, 1), (1200, 400, 800, 200, 2800, 120)


def generated(tiny: Library, num_blocks: int = 0) -> Tree:
    """Four sampled answers of an engine, three at a time."""
    blocks = tiny.BlockManager(num_blocks, BLOCK_SIZE) if num_blocks else None
    prompts = [token_ids(length, seed) for seed, length in enumerate((19, 5, 29, 11))]
    params = [tiny.SamplingParams(max_tokens=8, temperature=0.7, seed=seed) for seed in range(len(prompts))]
    engine = tiny.Engine(small_model(tiny), ByteTokenizer(), tiny.SchedulerConfig(24, 3), 96, blocks)
    return [[list(each.token_ids), each.finish_reason] for each in engine.generate(prompts, params)]


def simulated(tiny: Library, count: int, manager: str = "", num_blocks: int = 0, **parts: Tree) -> Tree:
    """The steps of requests whose prompts begin alike, with five priorities, and their ends in ms."""
    blocks = getattr(tiny, manager)(num_blocks, BLOCK_SIZE) if manager else parts.get("blocks")
    simulator = tiny.Simulator(
        tiny.SchedulerConfig(256, 64, 32, 2), tiny.CostModel(2e-3, 1e-4, 1e-7), blocks, parts.get("policy")
    )
    for i in range(count):
        prompt = (i % 2,) * 48 + (i % 4,) * 32 + (i,) * (1 + 13 * i % 70)
        simulator.add(tiny.SimulatedRequest(prompt, 1 + 7 * i % 20, priority=i * i % 5))
    seen: list[Tree] = []
    while simulator.scheduler.has_work and len(seen) < 1000:
        step = simulator.step()
        entries = [[each.sequence.id, each.start, each.num_tokens] for each in step.output.entries]
        seen.append([1e3 * step.end, entries])
    return seen


def paged(tiny: Library) -> Tree:
    """The logits of a prompt and 30 tokens."""
    pool = tiny.PagedKvPool(2, 2048, BLOCK_SIZE)
    caches = [tiny.PagedKvCache(pool, layer, [9, 2, 40, 7, 63, 11]) for layer in range(2)]
    tokens, seen = token_ids(70), []
    for start, end in ((0, 40), *((i, i + 1) for i in range(40, 70))):
        seen.append(small_model(tiny)(mx.array([tokens[start:end]]), start, caches, logits_to_keep=1))
        mx.eval(seen[-1])
    return seen


def batch(counts: Counts, H_q: int, H: int, D: int) -> tuple[mx.array, mx.array, mx.array, BlockLayout]:
    """The arguments of paged attention, on 401 blocks."""
    num_queries, contexts = counts
    keys, values = (normal(401, BLOCK_SIZE, H, D, seed=seed) for seed in (1, 2))
    longest = max(-(-S // BLOCK_SIZE) for S in contexts)
    tables = [[(7 * i + 3 * j) % 401 for j in range(longest)] for i in range(len(contexts))]
    places = [mx.array(x, mx.int32) for x in (tables, np.cumsum([0, *num_queries]), contexts)]
    return normal(sum(num_queries), H_q, D), keys, values, BlockLayout(*places)


def attended(tiny: Library, function: str) -> Tree:
    """Attention to blocks, by one of the functions for it."""
    return getattr(tiny, function)(*batch(MIXED, 6, 2, 64))


def dispatched(tiny: Library) -> Tree:
    """Attention to blocks with the heads of Qwen3-0.6B: so many that reading them takes the time."""
    return tiny.dispatch_paged_attention(*batch(LONG, *fitting((16, 8, 128), emulated=(2, 1, 32))))


def batch_sampled(tiny: Library) -> Tree:
    """Rows that are greedy, draw from all tokens, and draw from what is left by a cut."""
    params = tiny.SamplingParams
    rows = (params(), params(1.0), params(0.7, top_p=0.9), params(0.7, top_k=50, min_p=0.01)) * 2
    numbers = np.arange(len(rows), dtype=np.uint64) * np.uint64(2**60)
    return tiny.sample_batch(3 * normal(len(rows), 4096), tiny.SamplingBatch(rows, numbers))


def gpu_attention(tiny: Library, target: Tree, counts: Counts) -> Tree:
    """Attention to blocks by the kernels in Metal or CUDA."""
    return tiny.paged_attention_gpu(*batch(counts, 6, 2, 32), target=target)


def crowded(tiny: Library) -> Tree:
    """A pool that admits more than it can hold."""
    return simulated(tiny, 100, blocks=tiny.BlockManager(60, BLOCK_SIZE, overcommit=True))


def prioritized(tiny: Library) -> Tree:
    """Many that wait, by priorities that age."""
    return simulated(tiny, 500, policy=tiny.Priority())


def urgent(tiny: Library) -> Tree:
    """Long answers in few places, and requests of higher rank that come while they run."""
    simulator = tiny.Simulator(
        tiny.SchedulerConfig(64, 4), tiny.CostModel(2e-3, 1e-4), policy=tiny.Priority()
    )
    simulator.run([tiny.SimulatedRequest((i,) * 30, 40, 0.02 * i, 5 * (i % 4 > 0)) for i in range(60)])
    steps = [step.output.entries for step in simulator.steps]
    return [[[each.sequence.id, each.start, each.num_tokens] for each in entries] for entries in steps]


def targeted(tiny: Library) -> Tree:
    """Budgets from a latency target."""
    return simulated(tiny, 100, policy=tiny.LatencyTarget(tiny.Fcfs(), 9.0))


def slots(tiny: Library) -> Tree:
    """Of a long sequence."""
    return mx.array(tiny.slot_mapping(list(range(40_000)), 16, 77, 500_000))


def looked_up(tiny: Library) -> Tree:
    """Drafts after every hundredth token of a long text."""
    index, text, seen = tiny.PromptLookup(), token_ids(20_000), []
    for start in range(0, len(text), 100):
        index.extend(text[start : start + 100])
        seen.append(index.propose(5))
    return seen


def drafted(tiny: Library, has_model: bool) -> Tree:
    """Two greedy answers and two sampled ones, with drafts of lookup or of a model."""
    blocks = tiny.BlockManager(60, BLOCK_SIZE)
    drafter = tiny.DraftModel(small_model(tiny), blocks) if has_model else tiny.LookupDrafter(5, 1, 3)
    params = [tiny.SamplingParams(max_tokens=20, temperature=seed // 2, seed=seed) for seed in range(4)]
    config = tiny.SchedulerConfig(24, 3)
    execution = tiny.with_drafts(drafter)
    engine = tiny.Engine(small_model(tiny), ByteTokenizer(), config, 96, blocks, execution=execution)
    results = engine.generate([token_ids(length, length) for length in (19, 5, 29, 11)], params)
    return [[list(each.token_ids), each.finish_reason] for each in results]


def rejected(tiny: Library) -> Tree:
    """Whether drafts are accepted, and the replacements of those that aren't."""
    p, q = (mx.softmax(2 * normal(64, 4096, seed=seed), axis=-1) for seed in (1, 2))
    numbers = mx.random.uniform(shape=(2, 64), key=mx.random.key(3))
    is_accepted, replaced = tiny.reject(p, q, mx.arange(64) * 61, *numbers)
    return [is_accepted, mx.where(is_accepted, 0, replaced)]


def server(tiny: Library, module: str) -> Tree:
    """A module of the server. Importing the package does not import the server."""
    return importlib.import_module(f"{tiny.package.__name__}.server.{module}")


def increments(tiny: Library) -> Tree:
    """The pieces of a long answer with stop strings that seem to begin often and never come."""
    stop = tuple(bytes(token_ids(2, seed)).decode(errors="replace") + "." * 40 for seed in range(4))
    pieces = server(tiny, "text_increments").TextIncrements(ByteTokenizer(), stop)
    return [*map(pieces.add, token_ids(2000)), pieces.finish()]


def waited(tiny: Library) -> Tree:
    """Milliseconds until the first of 200 requests ends."""
    admission = server(tiny, "admission")
    work = [admission.RemainingWork(100 + 7 * i % 400, 50 + 13 * i % 200) for i in range(200)]
    config, cost = tiny.SchedulerConfig(256, 64, 32, 2), tiny.CostModel(2e-3, 1e-4, 1e-7)
    return 1e3 * admission.seconds_until_room(config, cost, work)


def masked(tiny: Library) -> Tree:
    """Logits of eight rows, half of them masked."""
    bits = np.random.default_rng(1).integers(0, 2**32, (4, 1536), np.uint32)
    return tiny.mask_rows_simple(normal(8, 49_152), mx.array([6, 1, 4, 3]), mx.array(bits))


CACHING = "PrefixCachingBlockManager"
CASES = (
    # day 1
    Case("Scheduler.schedule", "200 prompts, 64 at once", simulated, (200,)),
    Case("Engine.generate", "4 prompts with seeds", generated),
    # day 2
    Case("slot_mapping", "500,000 tokens", slots),
    Case("BlockManager.allocate", "100 prompts", simulated, (100, "BlockManager", 150)),
    Case("PagedKvCache", "A prompt and 30 tokens", paged),
    # day 3
    Case("paged_attention_simple", "A chunk, five decodes", attended, ("paged_attention_simple",)),
    Case("ops.paged_attention.paged_attention", "A chunk, five decodes", attended, ("paged_attention",)),
    Case("ModelRunner.run", "4 prompts on blocks", generated, (60,)),
    Case("dispatch_paged_attention", "A chunk, five decodes", dispatched),
    *gpu_cases("paged_decode", "Two decodes", gpu_attention, ((1, 1), (70, 33))),
    *gpu_cases("paged_attention", "35 queries", gpu_attention, ((35,), (70,))),
    Case("sample_batch", "8 rows, half are cut", batch_sampled),
    # day 4
    Case(f"{CACHING}.allocate", "100 that begin alike", simulated, (100, CACHING, 600)),
    Case(f"{CACHING}.evict", "100 in too few blocks", simulated, (100, CACHING, 60)),
    # day 5
    Case("make_room", "100 in a small pool", crowded),
    Case("Priority", "500 that wait", prioritized),
    Case("let_in", "60 in 4 places", urgent),
    Case("token_budget", "Steps of 9 ms", targeted),
    # day 6
    Case("PromptLookup", "20,000 tokens", looked_up),
    Case("WithDrafts.compute", "4 prompts with lookup", drafted, (False,)),
    Case("reject", "64 drafts", rejected),
    Case("DraftModel.propose", "4 prompts", drafted, (True,)),
    # day 7
    Case("TextIncrements.add", "2,000 tokens", increments),
    Case("seconds_until_room", "200 requests", waited),
    # day 8
    Case("mask_rows_simple", "4 of 8 rows", masked),
)
