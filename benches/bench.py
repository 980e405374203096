"""`pdm run bench`: prefill and decode against other engines; `pdm run bench serving`: under a load."""

import typer

from benches import serving, speed
from scripts.checkpoints import SHIPPED_MODEL

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    model: speed.Model = SHIPPED_MODEL,
    repeats: speed.Repeats = 3,
    engine: speed.Engines = None,
    output: speed.Output = None,
) -> None:
    """Measure tokens a second of every engine that is installed here, the days of week 2 among them.

    Example: pdm run bench --model smollm2 --engine tiny-llm --engine "mlx-lm as installed"
    """
    if context.invoked_subcommand is None:
        speed.main(model, repeats, engine, output)


app.command("serving")(serving.main)

if __name__ == "__main__":
    app()
