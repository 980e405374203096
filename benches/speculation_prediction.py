"""What drafts will gain with several requests at once, predicted from what they do for one."""

from collections.abc import Sequence as Items
from random import Random

from tiny_llm_ref import BlockManager, SchedulerConfig, SimulatedRequest, Simulator
from tiny_llm_ref.serving.given.draft_cost import DraftCost
from tiny_llm_ref.serving.simulator import SimulatedStep

ANY_TOKEN = 0

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
    times = [decode_seconds(cost, each, num_requests, prompt, answer) for each in ([(0, 0)], tries)]
    return times[0] / times[1]


def decode_seconds(cost: DraftCost, tries: Items[Try], num_requests: int, prompt: int, answer: int) -> float:
    """Simulated seconds from the step after which every request has its first token."""
    config = SchedulerConfig(max(512, prompt * num_requests), num_requests)
    blocks = BlockManager(num_requests * (prompt + answer), 1)
    simulator = DraftSimulator(config, blocks, cost, tries)
    simulator.run(SimulatedRequest((ANY_TOKEN,) * prompt, answer) for _ in range(num_requests))
    return simulator.now - simulator.steps[0].end
