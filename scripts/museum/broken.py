"""A package with a bug in it: the reference, or a copy of the learner's with what it lacks filled in."""

from scripts.bank.entries import Solution
from scripts.course import load_course
from scripts.learn.learner import all_tasks, functions_of_tasks
from scripts.museum.exhibits import reference
from scripts.sandbox import Run
from scripts.sources.files import Sources, read_reference
from scripts.sources.patch import dig, fill
from scripts.sources.render import starter_of


def broken_reference(solution: Solution) -> Run:
    """The tests of the solution's task, on the reference with its bug."""
    return solution.run(reference())


def broken_copy(solution: Solution, own: Sources) -> Sources:
    """A package whose functions of the bug's task, and of the class that has the bug, are the wrong ones.

    They come from the reference with the bug, since a bug in the words of the reference may fit nowhere in a
    learner's. What is not written yet comes from the reference as it is.

    Raises:
        ValueError: a source cannot be read.
    """
    course, sources = load_course(), read_reference()
    starter = starter_of(course)
    symbol = reference().find(solution.symbol)
    owner = symbol.name.rpartition(".")[0]
    task = f"{solution.day.week}.{solution.day.day}.{solution.task}"
    every = functions_of_tasks(starter, course, {task.id for _, task in all_tasks(course)})
    wrong = {*functions_of_tasks(starter, course, {task})}
    wrong |= {(path, name) for path, name in every if path == symbol.path and name.startswith(f"{owner}.")}
    whole = fill(own, starter, sources, [each for each in every if each not in wrong])
    dug = dig(whole, starter, sources, [*wrong])
    return fill(dug, starter, {**sources, **without_shared(broken_reference(solution))}, [*wrong])


def without_shared(run: Run) -> Sources:
    """The sources of a run without those of the package that all others stand on."""
    return {path: text for path, text in run.sources.items() if ".." not in path.parts}
