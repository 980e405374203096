"""Names, paths, commands and options in backticks: what exists passes, what does not is refused."""

from pathlib import Path

import pytest

from tests.book.small_books import faults_of

KNOWN = [
    *(
        "softmax()",
        "softmax",
        "softmax(x, axis)",
        "Request.offset",
        "request.offset",
        "batching.batch_generator.BatchGenerator",
    ),
    *(
        "BatchGenerator",
        "tiny_llm.batching.batch_generator",
        "tiny_llm.batching.batch_generator.BatchGenerator.step",
        "dense_kv_cache.TinyKvFullCache",
    ),
    *("cache.rewind(n)", "mx.matmul", "mx.fast.rope", "np.float32", "x.shape", "len(prompt)", "f(x)", "O(n)"),
    *("ValueError", "None", "L", "[B, H, L, D]", "num_prefill_steps", "rope_theta", "a b c", "x + y"),
    *("tiny_llm/batching/request.py", "tiny_llm/kernels/cpu/", "course.toml", "request.py", "config.json"),
    *("tests/days/test_week_1_day_1.py", "tokens/s", "--no-chunking", "--week 2", "TINY_LLM_BLAS=off"),
    *("pdm run demo --no-chunking", "pdm run test --week W --day D", "pdm run X", "pip install pdm"),
    *("pdm run bench context --steps 3", "pdm run bench --model M", "pdm run bench NAME"),
    *("NotImplementedError", "SamplingParams.temperature", "7.5", "..."),
]
UNKNOWN = [
    ("softmx()", "the packages have no `softmx`"),
    ("Request.offsets", "the packages have no `Request.offsets`"),
    ("batching.batch_generator.Generator", "the packages have no `batching.batch_generator.Generator`"),
    ("mx.matmull", "the packages have no `mx.matmull`"),
    ("num_prefil_steps", "`num_prefil_steps` occurs nowhere"),
    ("BatchGeneratorr", "`BatchGeneratorr` occurs nowhere"),
    ("TINY_LLM_NOTHING=off", "`TINY_LLM_NOTHING` occurs nowhere"),
    ("tiny_llm/requests.py", "there is no `tiny_llm/requests.py`"),
    ("tests/test_week_9_day_9.py", "there is no `tests/test_week_9_day_9.py`"),
    ("nothing.toml", "there is no `nothing.toml`"),
    ("--no-such-option", "no command has the option `--no-such-option`"),
    ("pdm run nothing", "there is no command `pdm run nothing`"),
    ("pdm run bench contxt", "there is no command `pdm run bench contxt`"),
    ("pdm run demo --week 1", "`pdm run demo` has no option --week"),
]


@pytest.mark.parametrize("code", KNOWN)
def test_what_exists_passes(tmp_path: Path, code: str) -> None:
    assert faults_of(tmp_path, f"Text `{code}`.") == []


@pytest.mark.parametrize(("code", "sentence"), UNKNOWN)
def test_what_does_not_exist_is_refused(tmp_path: Path, code: str, sentence: str) -> None:
    ((line, text),) = faults_of(tmp_path, f"Text\nand `{code}`.")
    assert line == 2
    assert sentence in text


def test_names_of_other_programs_are_listed_by_the_page(tmp_path: Path) -> None:
    text = "`RadixAttention` and `--enable-chunked-prefill` of vLLM"
    assert len(faults_of(tmp_path, text)) == 2
    assert faults_of(tmp_path, f"{text}\n\n<!-- foreign: RadixAttention --enable-chunked-prefill -->") == []


def test_what_a_fence_of_the_page_binds_is_known(tmp_path: Path) -> None:
    fence = "```python,shown\nnum_own_things = 3\n```\n"
    assert faults_of(tmp_path, f"{fence}\n`num_own_things`") == []
    assert len(faults_of(tmp_path, "`num_own_things`")) == 1
