"""Which tasks a learner may leave out: those of a GPU that they did not choose, and those marked optional."""

import shutil
import sys
from typing import get_args

from scripts.course import Course, Gpu, Task, load_course
from scripts.learn.kept import kept
from scripts.sources.chunks import HOLE
from scripts.sources.files import Sources
from scripts.sources.render import owned_functions
from scripts.sources.symbols import holes_of

FOLDER = "gpu"


def remembered_gpu() -> Gpu | None:
    """The GPU that the learner chose; None before that, or if the file says nothing that makes sense."""
    name = kept(FOLDER).read().get(FOLDER)
    return next((gpu for gpu in get_args(Gpu) if gpu == name), None)


def chosen_gpu() -> Gpu:
    """The GPU that the learner chose; before that, the one of this machine."""
    return remembered_gpu() or machine_gpu()


def machine_gpu() -> Gpu:
    """The kind of GPU that this machine has, by its system and its driver."""
    if sys.platform == "darwin":
        return "metal"
    return "cuda" if shutil.which("nvidia-smi") else "none"


def choose_gpu(name: str) -> Gpu:
    """Remember the learner's choice for this clone of the course.

    Raises:
        ValueError: there is no such GPU, it cannot be left out on this machine, or the file cannot be
            written.
    """
    gpu: Gpu | None = next((gpu for gpu in get_args(Gpu) if gpu == name), None)
    if gpu is None:
        raise ValueError(f"--gpu {name!r} is no GPU of the course: choose metal, cuda or none")
    if sys.platform == "darwin" and gpu != "metal":
        raise ValueError(
            "on a Mac your engine runs on the GPU, by your kernels in Metal, so they are core: choose metal "
            "(you can test the tasks in CUDA with --task as well)"
        )
    if not kept(FOLDER).put(FOLDER, gpu):
        raise ValueError("the choice cannot be kept: make the folder that TINY_LLM_CACHE names writable")
    return gpu


def left_out(sources: Sources, gpu: Gpu, course: Course | None = None) -> set[str]:
    """Ids of the optional tasks of which no function is written, for a learner who chose a GPU.

    Args:
        sources: of the learner's package.
        gpu: whose kernels are core.
        course: the map; that of the repository unless given.
    """
    course = course or load_course()
    optional = {task for day in course.days for task in day.tasks if not task.is_core(gpu)}
    return {task.id for task in optional} - begun(sources, course, optional)


def begun(sources: Sources, course: Course, tasks: set[Task]) -> set[str]:
    """Ids of those of these tasks that have a function which is no hole any more."""
    found: set[str] = set()
    modules = {symbol for task in tasks for symbol in task.symbols}
    for path, source in sources.items():
        module = ".".join(path.with_suffix("").parts) + "."
        here = {symbol for symbol in modules if symbol.startswith(module)}
        if not here:
            continue
        try:
            holes = holes_of(path, source) if HOLE.search(source) else {}
            owned = owned_functions(path, source, course)
        except (KeyError, ValueError):  # a function is gone, or the file cannot be read
            found |= {task.id for task in tasks if here.intersection(task.symbols)}
            continue
        found |= {task.id for name, task in owned.items() if name not in holes}
    return found
