"""A real server on the shipped model, for clients nobody here wrote."""

from contextlib import AbstractContextManager
from pathlib import Path

from http_server.app import create_app
from http_server.config import ServerConfig
from http_server.engine_factory import EngineFactory
from kernel_runtime.checkpoint import load_tokenizer
from tests.server.servers import on_socket
from tiny_llm import Engine, SamplingParams, SchedulerConfig, load

MODEL = Path(__file__).parents[2] / "models" / "qwen3-kjv-4m"


def serving(max_model_len: int | None = None) -> AbstractContextManager[str]:
    """Serve the model at the address of the context."""
    config = SchedulerConfig(max_num_prefill_only_tokens=512)
    factory = EngineFactory(lambda: load(MODEL), config, max_model_len)
    return on_socket(create_app(factory, lambda: load_tokenizer(MODEL), ServerConfig((MODEL.name,), config)))


def expected(prompt: str, max_tokens: int) -> str:
    """What the model continues a prompt with."""
    with Engine(*load(MODEL)) as engine:
        return engine.generate([prompt], SamplingParams(max_tokens=max_tokens))[0].text
