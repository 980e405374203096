"""The scheduler without a model, for tests of what it schedules with: blocks and their prefixes."""

from tiny_llm import Simulator
from tiny_llm.simulation.simulator import SimulatedStep


class PaperScheduler(Simulator):
    """A simulator with a step of its own, since the simulator's is an optional task; costs are not used."""

    def step(self) -> SimulatedStep:
        """Compute one step; each final entry gets a token, and leaves with its last one."""
        output = self.scheduler.schedule()
        self.steps.append(SimulatedStep(output, self.now, self.now))
        self.scheduler.complete(
            output, {entry.sequence.id: self._next_token(entry.sequence.id) for entry in output.final}
        )
        for number in [entry.sequence.id for entry in output.final]:
            sequence = self.scheduler.sequences[number]
            if len(sequence.generated_ids) == self._requests[number].num_output_tokens:
                self.scheduler.remove(number)
        return self.steps[-1]

    def _next_token(self, number: int) -> int:
        place = len(self.scheduler.sequences[number].generated_ids)
        return (*self._requests[number].output_ids[place:], 0)[0]
