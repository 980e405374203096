"""What twins and figures are compared with: runs of the reference's generator, shapes of checkpoints."""

from types import SimpleNamespace

import mlx.core as mx

from scripts.run.recorder import Recorder
from tiny_llm import (
    BatchGenerator,
    CostModel,
    ModelConfig,
    SamplingParams,
    SchedulerConfig,
    SimulatedRequest,
    Simulator,
    TinyKvFullCache,
)
from tiny_llm.speculation.endless_tokenizer import EndlessTokenizer


class Clock:
    """Stands still but for what a model adds to it."""

    now = 0

    def __call__(self) -> float:
        return self.now


class PacedModel:
    """Never ends a text; each call takes `call_cost` and a token of time each."""

    num_hidden_layers = 1
    config = SimpleNamespace(vocab_size=3, max_position_embeddings=4096)

    def __init__(self, clock: Clock, call_cost: int) -> None:
        self.clock = clock
        self.call_cost = call_cost

    def create_kv_cache(self) -> list[TinyKvFullCache]:
        return [TinyKvFullCache()]

    def __call__(self, tokens, offset=0, cache=None, logits_to_keep=None):
        B, L = tokens.shape
        self.clock.now += self.call_cost + B * L
        entries = mx.zeros((B, 1, L, 1))
        cache[0].update_and_fetch(entries, entries, "causal")
        return mx.zeros((B, L if logits_to_keep is None else logits_to_keep, 3))


def play(settings: dict) -> dict:
    """The same run by the reference's generator, in the words of the twin."""
    clock = Clock()
    model = PacedModel(clock, settings["callCost"])
    generator = BatchGenerator(model, EndlessTokenizer(), settings["batch"], settings["chunk"], 4096)
    recorder = Recorder(generator, clock)
    ids: list[int] = []  # of the requests in the order they were submitted
    arrivals: dict[int, dict] = {}
    promotions = []
    while len(ids) < len(settings["prompts"]) or generator.has_work:
        for i, arrival in enumerate(settings["arrivals"]):
            if arrival == recorder.num_steps:
                ids.append(i)
                arrivals[i] = {"step": recorder.num_steps, "time": clock.now}
                recorder.submit(
                    [1] * settings["prompts"][i], SamplingParams(max_tokens=settings["outputs"][i])
                )
        slots_before = list(generator.slots)
        num_events = len(recorder.events)
        recorder.step()
        assert len(recorder.events) <= num_events + 2
        promotions += [
            {"step": recorder.num_steps - 1, "id": ids[request.prompt_idx], "slot": slot}
            for slot, request in enumerate(generator.slots)
            if request is not None and request is not slots_before[slot]
        ]
    metrics = recorder.metrics
    order = [ids.index(i) for i in range(len(ids))]
    return {
        "calls": [
            {
                "step": event.step,
                "phase": event.phase,
                "start": event.start,
                "end": event.end,
                "tokens": sorted((ids[index], tokens) for index, tokens in event.num_tokens.items()),
            }
            for event in recorder.events
        ],
        "promotions": promotions,
        "arrivals": [arrivals[i] for i in range(len(ids))],
        "numSteps": recorder.num_steps,
        "ttft": [metrics.ttft(index) for index in order],
        "gap": [max(metrics.gaps(index), default=None) for index in order],
    }


def play_budget(settings: dict) -> dict:
    """A run of the simulator with one budget, in the words of the twin."""
    config = SchedulerConfig(
        settings["budget"], settings["batch"], settings["threshold"] or None, settings["partial"] or None
    )
    simulator = Simulator(config, CostModel(settings["callCost"], 1))
    ids: list[int] = []  # of the requests in the order they were added
    arrivals: dict[int, dict] = {}
    calls = []
    num_steps = 0
    while len(ids) < len(settings["prompts"]) or simulator.scheduler.has_work:
        for i, arrival in enumerate(settings["arrivals"]):
            if arrival == num_steps:
                ids.append(i)
                arrivals[i] = {"step": num_steps, "time": simulator.now}
                prompt = (1,) * settings["prompts"][i]
                simulator.add(SimulatedRequest(prompt, settings["outputs"][i], simulator.now))
        step = simulator.step()
        when = {"step": num_steps, "start": step.start, "end": step.end}
        rows = [(ids[each.sequence.id], each.num_tokens, each.is_final) for each in step.output.entries]
        is_chunk = [each.is_prefill for each in step.output.entries]
        chunks = [row for row, is_one in zip(rows, is_chunk, strict=True) if is_one]
        decodes = [row for row, is_one in zip(rows, is_chunk, strict=True) if not is_one]
        calls += [{**when, "phase": "prefill", "tokens": [row]} for row in chunks]
        calls += [{**when, "phase": "decode", "tokens": decodes}] if decodes else []
        num_steps += 1
    metrics = simulator.metrics
    order = [ids.index(i) for i in range(len(ids))]
    return {
        "calls": calls,
        "arrivals": [arrivals[i] for i in range(len(ids))],
        "numSteps": num_steps,
        "ttft": [metrics.ttft(index) for index in order],
        "gap": [max(metrics.gaps(index), default=None) for index in order],
    }


def tensors_of(config: ModelConfig, bits: int) -> dict[str, mx.array]:
    """Arrays of the shapes of a tied checkpoint, which nobody evaluates."""
    hidden, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    query, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    floats = mx.float32 if bits == 32 else mx.float16
    attention = {"q": (query, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, query)}
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    matrices = {"model.embed_tokens": (config.vocab_size, hidden)}
    vectors = {"model.norm": hidden}
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        matrices |= {f"{layer}.self_attn.{name}_proj": shape for name, shape in attention.items()}
        matrices |= {f"{layer}.mlp.{name}_proj": shape for name, shape in mlp.items()}
        vectors |= {f"{layer}.input_layernorm": hidden, f"{layer}.post_attention_layernorm": hidden}
        if config.qk_norm:
            vectors |= {f"{layer}.self_attn.{name}_norm": dim for name in "qk"}
    tensors = {f"{name}.weight": mx.zeros(size, floats) for name, size in vectors.items()}
    for name, (rows, columns) in matrices.items():
        if bits >= 16:
            tensors[f"{name}.weight"] = mx.zeros((rows, columns), floats)
            continue
        tensors[f"{name}.weight"] = mx.zeros((rows, columns * bits // 32), mx.uint32)
        tensors[f"{name}.scales"] = mx.zeros((rows, columns // 64), floats)
        tensors[f"{name}.biases"] = mx.zeros((rows, columns // 64), floats)
    return tensors
