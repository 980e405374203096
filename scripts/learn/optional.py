"""Which tasks a learner may leave out: those of a GPU that they did not choose, and those marked optional."""

import shutil
import sys
from typing import get_args

from scripts.course import Course, Gpu, load_course
from scripts.learn.kept import kept
from scripts.sources.files import Sources, module_name
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
    optional = {task.id for day in course.days for task in day.tasks if not task.is_core(gpu)}
    return optional & not_begun(sources, course)


def not_begun(sources: Sources, course: Course) -> set[str]:
    """Ids of the tasks of which no function is written: none of their tests can pass."""
    tasks = [task for day in course.days for task in day.tasks]
    begun: set[str] = set()
    for path, source in sources.items():
        module = f"{module_name(path)}."
        here = {task.id for task in tasks if any(symbol.startswith(module) for symbol in task.symbols)}
        try:
            owned = owned_functions(path, source, course) if here else {}
            holes = holes_of(path, source) if here else {}
        except (KeyError, ValueError):  # a function is gone, or the file cannot be read
            begun |= here
            continue
        begun |= {task.id for name, task in owned.items() if name not in holes}
    return {task.id for task in tasks} - begun
