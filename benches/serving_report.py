"""What the serving benchmark prints and draws."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benches.serving_runs import ARRIVALS, BURST, DECODE, PREFILL, PREFILL_TOKENS, Result
from benches.sides import ONE_BUDGET, WHOLE
from benches.speed import machine
from scripts.chart import bar_chart
from tiny_llm import ServingMetrics

WIDTH = 100
Figure = tuple[str, float]
ARRIVAL_FIGURES: dict[str, Figure] = {
    "output_tokens_per_s": ("output tokens/s", 1.0),
    "goodput": ("good requests/s", 1.0),
    "ttft_p50": ("TTFT p50", 1e3),
    "ttft_p99": ("TTFT p99", 1e3),
    "queue_p50": ("queue p50", 1e3),
    "queue_p99": ("queue p99", 1e3),
    "itl_p50": ("ITL p50", 1e3),
    "itl_p99": ("ITL p99", 1e3),
    "longest_itl": ("longest gap", 1e3),
}


def print_report(result: Result, console: Console) -> None:
    """Machine, loads, tables, ratios, capacity."""
    console.width = max(console.width, WIDTH)
    settings, target, cost = result.settings, result.target, result.cost
    console.print(f"{settings.model}; {', '.join(map(str, machine().values()))}", soft_wrap=True)
    console.print(
        f"{settings.num_requests} requests a run; budget or "
        f"chunk {settings.budget}, {settings.batch_size} places; median, least to most",
        soft_wrap=True,
    )
    console.print(
        f"good: first token within {target.ttft * 1e3:.0f} ms, no gap above {target.itl * 1e3:.0f} ms\n"
    )
    console.print(f"{result.rate:.3g} arrivals per second, times in ms")
    console.print(arrivals_table(result.runs[ARRIVALS]))
    console.print()
    console.print(rates_table(result))
    console.print()
    for line in [*ratio_lines(result), *capacity_lines(result)]:
        console.print(line, soft_wrap=True)
    console.print(
        f"costs: {cost.per_step * 1e3:.2f} ms a step, {cost.per_token * 1e6:.0f} µs a token, "
        f"{cost.per_context * 1e9:.0f} ns a key that a query looks at",
        soft_wrap=True,
    )


def arrivals_table(sides: dict[str, list[ServingMetrics]]) -> Table:
    """A row a figure, a column a side."""
    table = empty_table("", sides)
    for key, (name, scale) in ARRIVAL_FIGURES.items():
        table.add_row(name, *(cell(values_of(runs, key, scale)) for runs in sides.values()))
    return table


def empty_table(corner: str, sides: Iterable[str]) -> Table:
    """With a column for each side."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column(corner, no_wrap=True)
    for side in sides:
        table.add_column(side, justify="right")
    return table


def rates_table(result: Result) -> Table:
    """Tokens per second where no request waits for an arrival."""
    table = empty_table("tokens/s", result.runs[BURST])
    for load, scale in ((BURST, 1), (DECODE, 1), (PREFILL, PREFILL_TOKENS)):
        runs_of = result.runs[load].values()
        table.add_row(load, *(cell(values_of(runs, "output_tokens_per_s", scale)) for runs in runs_of))
    return table


def values_of(runs: Sequence[ServingMetrics], key: str, scale: float = 1.0) -> list[float]:
    """A figure of each run that has it."""
    return [value * scale for run in runs if (value := getattr(run, key)) is not None]


def cell(values: Sequence[float]) -> str:
    """Median, below it the least and the most; a dash without values."""
    if not values:
        return "-"
    texts = [
        f"{value:.0f}" if value >= 100 else f"{value:.3g}"
        for value in (median(values), min(values), max(values))
    ]
    return f"{texts[0]}\n{texts[1]}-{texts[2]}"


def ratio_lines(result: Result) -> list[str]:
    """One budget against whole prompts: the median over the runs of their ratios."""
    if not {ONE_BUDGET, WHOLE} <= result.runs[ARRIVALS].keys():
        return []
    keys = {"longest gap": "longest_itl", "p99 gap": "itl_p99", "output tokens/s": "output_tokens_per_s"}
    words = [f"{name} {ratio(result.runs[ARRIVALS], key)}" for name, key in keys.items()]
    burst = ratio(result.runs[BURST], "output_tokens_per_s")
    return [f"one budget against whole prompts: {', '.join(words)}; all at once: output tokens/s {burst}"]


def ratio(sides: dict[str, list[ServingMetrics]], key: str) -> str:
    """The median ratio over the loads that both sides have served; a dash where a figure is missing."""
    pairs = zip(sides[ONE_BUDGET], sides[WHOLE], strict=False)
    ratios = [getattr(a, key) / getattr(b, key) for a, b in pairs if getattr(a, key) and getattr(b, key)]
    return f"{median(ratios):.2f}x" if ratios else "-"


def capacity_lines(result: Result) -> list[str]:
    """The rates found, and what the runs at them measured."""
    limits, capacities = result.limits, result.capacities
    rates = {name: found.rate for name, found in capacities.items()}
    words = [
        f"{name} {'no rate' if rate is None else f'{rate:.3g} per second'}" for name, rate in rates.items()
    ]
    one, whole = rates[ONE_BUDGET], rates[WHOLE]
    times = f", {one / whole:.1f} times as much" if one is not None and whole else ""
    lines = [
        f"capacity, simulated, with a p99 gap of at most {limits.itl_p99 * 1e3:.0f} ms and half of the "
        f"requests at most {limits.queue_p50 * 1e3:.0f} ms in the queue: {', '.join(words)}{times}"
    ]
    for name, found in capacities.items():
        for rate, runs in found.at.items():
            gap, queue = (values_of(runs, key, 1e3) for key in ("itl_p99", "queue_p50"))
            numbers = [
                f"{median(each):.0f} ({min(each):.0f} to {max(each):.0f}) ms" for each in (gap, queue) if each
            ]
            lines.append(f"  {name} at {rate} per second, measured: p99 gap, queue p50 {', '.join(numbers)}")
    return lines


def chart(result: Result) -> dict[str, Any]:
    """Bars for every side."""
    groups = {
        f"{title} ({unit})": {
            name: values
            for name, runs in result.runs[load].items()
            if (values := values_of(runs, key, scale))
        }
        for title, unit, load, key, scale in (
            ("p99 gap", "ms", ARRIVALS, "itl_p99", 1e3),
            ("longest gap", "ms", ARRIVALS, "longest_itl", 1e3),
            ("median TTFT", "ms", ARRIVALS, "ttft_p50", 1e3),
            ("good requests per second", "more is better", ARRIVALS, "goodput", 1.0),
            ("all at once, output tokens per second", "more is better", BURST, "output_tokens_per_s", 1.0),
        )
    }
    shown = {name: [found.rate] for name, found in result.capacities.items() if found.rate is not None}
    title = f"{result.settings.model}, {result.rate:.3g} arrivals per second"
    return bar_chart(title, {**groups, "capacity, simulated (arrivals per second)": shown})
