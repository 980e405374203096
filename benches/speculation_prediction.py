"""What drafts will gain with several requests at once, predicted from what they do for one."""

from collections.abc import Sequence as Items
from random import Random

from tiny_llm import BlockManager, SchedulerConfig, Sequence, SimulatedRequest, Simulator
from tiny_llm.simulation.simulator import SimulatedStep
from tiny_llm.speculation.draft_cost import DraftCost

ANY_TOKEN = 0
NUM_RUNS = 16
"""Simulated runs of a prediction: what happens to drafts is left to chance."""

Try = tuple[int, int]
"""Number of drafts that a sequence had in a step, and how many of them were accepted."""


class DraftSimulator(Simulator):
    """A `Simulator` of an engine with drafts.

    Args:
        config, blocks: as for `Simulator`.
        cost: what steps with drafts and passes of the draft model cost.
        tries: what happens to a sequence in a step, each as likely as the others.
        seed: of what happens.
    """

    def __init__(
        self, config: SchedulerConfig, blocks: BlockManager, cost: DraftCost, tries: Items[Try], seed: int = 0
    ) -> None:
        super().__init__(config, cost.of(config.max_num_seqs), blocks)
        self.draft_cost = cost
        self.tries = tries
        self.random = Random(seed)

    def step(self) -> SimulatedStep:
        """Simulate one step, with as many drafts as the scheduler grants."""
        output = self.scheduler.schedule()
        tries = {entry.sequence.id: self.random.choice(self.tries) for entry in output.final}
        granted = self.scheduler.grant_drafts(output, {id: each[0] for id, each in tries.items()})
        drafted = output.with_drafts({id: [ANY_TOKEN] * number for id, number in granted.items()})
        seconds = self.draft_cost.seconds(drafted)
        seconds += max(granted.values(), default=0) * self.draft_cost.seconds_of_a_pass(output)
        step = SimulatedStep(drafted, self.now, self.now + seconds)
        self.now = step.end
        self.steps.append(step)
        tokens = {id: [ANY_TOKEN] * (1 + min(each[1], granted.get(id, 0))) for id, each in tries.items()}
        self.scheduler.complete_drafted(output, tokens)
        for entry in output.final:
            if len(entry.sequence.generated_ids) >= self._requests[entry.sequence.id].num_output_tokens:
                self.scheduler.remove(entry.sequence.id)
        return step


def predicted_gain(cost: DraftCost, tries: Items[Try], num_requests: int, prompt: int, answer: int) -> float:
    """How many times as fast several requests decode together with drafts as without.

    Args:
        cost, tries: as for `DraftSimulator`.
        num_requests: number of requests at once.
        prompt, answer: tokens of each.
    """
    runs = [decode(cost, tries, num_requests, prompt, answer, seed) for seed in range(NUM_RUNS)]
    num_tokens, seconds = map(sum, zip(*runs, strict=True))
    num_plain_tokens, plain_seconds = decode(cost, [(0, 0)], num_requests, prompt, answer)
    return float(num_tokens / seconds * plain_seconds / num_plain_tokens)


def decode(
    cost: DraftCost, tries: Items[Try], num_requests: int, prompt: int, answer: int, seed: int = 0
) -> tuple[int, float]:
    """Simulated tokens and seconds after the step with all first tokens, until the first answer ends."""
    config = SchedulerConfig(max(512, prompt * num_requests), num_requests)
    simulator = DraftSimulator(config, BlockManager(num_requests * (prompt + answer), 1), cost, tries, seed)
    for _ in range(num_requests):
        simulator.add(SimulatedRequest((ANY_TOKEN,) * prompt, answer))
    sequences = list(simulator.scheduler.sequences.values())
    simulator.step()
    num_before, start = num_generated(sequences), simulator.now
    while len(simulator.scheduler.sequences) == num_requests:
        simulator.step()
    return num_generated(sequences) - num_before, simulator.now - start


def num_generated(sequences: Items[Sequence]) -> int:
    """Tokens of all answers so far."""
    return sum(len(sequence.generated_ids) for sequence in sequences)
