"""litellm, pydantic-ai, openai-agents and langchain-openai, unmodified."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any, Literal

import pydantic
import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices when it is imported
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

import agents
import langchain_openai
import litellm
import openai
import pydantic_ai
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients import SAMPLED
from tests.clients.serving import MODEL, expected
from tests.server.scripted import turns_app
from tests.server.servers import MODEL as FAKE
from tests.server.servers import on_socket

pytestmark = SAMPLED
NAME, QUESTION, MOST = MODEL.name, "Who made the world?", 300
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Ulm"}}\n</tool_call>'
GREEDY = {"temperature": 0.0, "max_tokens": MOST}
"""The answers end long before the limit."""
SHORT = {**GREEDY, "max_tokens": 64}  # for a server of 128 tokens


class King(pydantic.BaseModel):
    land: Literal["Judah", "Israel"]


def weather(city: str) -> str:
    """How it is somewhere."""
    asked.append(city)
    return "rain"


asked: list[str] = []
"""What the agents of the clients asked the tool."""


@pytest.fixture
def tools_url() -> Iterator[str]:
    """A server that calls the tool, and answers after that.

    The shipped model's chat template has no tools, so a script answers.
    """
    asked.clear()
    app, _ = turns_app(CALL, "It rains.")
    with on_socket(app) as url:
        yield f"{url}/v1"


# litellm


def litellm_fields(url: str, model: str = NAME) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "any", "messages": messages}


def test_litellm(url: str) -> None:
    whole = litellm.completion(**litellm_fields(url), **GREEDY)
    assert whole.choices[0].message.content == expected(PROMPT, MOST)
    assert 0 < whole.usage.completion_tokens < MOST
    stream = litellm.completion(**litellm_fields(url), **GREEDY, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected(PROMPT, MOST)
    formed = litellm.completion(**litellm_fields(url), temperature=0, response_format=King)
    assert King.model_validate_json(formed.choices[0].message.content)
    with pytest.raises(litellm.NotFoundError, match="gpt-5"):
        litellm.completion(**litellm_fields(url, "gpt-5"))


def test_litellm_with_tools(tools_url: str) -> None:
    fields = litellm_fields(tools_url.removesuffix("/v1"), FAKE)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    fields["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    message = litellm.completion(**fields).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Ulm"}')
    chunks = list(litellm.completion(**fields, stream=True))
    (streamed,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    fields["messages"] += [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert litellm.completion(**fields).choices[0].message.content == "It rains."


# pydantic-ai


def pydantic_agent(url: str, model: str = NAME, kind: Any = OpenAIChatModel, **settings: Any) -> Any:
    provider = OpenAIProvider(base_url=url, api_key="any")
    return pydantic_ai.Agent(
        kind(model, provider=provider), model_settings=dict(SHORT if model == FAKE else GREEDY), **settings
    )


@pytest.mark.parametrize("kind", [OpenAIChatModel, PydanticResponsesModel])
def test_pydantic_ai(url: str, kind: Any) -> None:
    agent = pydantic_agent(f"{url}/v1", kind=kind)
    assert agent.run_sync(QUESTION).output == expected(PROMPT, MOST)

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as result:
            return str(await result.get_output())

    assert asyncio.run(streamed()) == expected(PROMPT, MOST)
    king = pydantic_agent(f"{url}/v1", kind=kind, output_type=pydantic_ai.NativeOutput(King))
    assert isinstance(king.run_sync(QUESTION).output, King)
    with pytest.raises(pydantic_ai.ModelHTTPError, match="gpt-5"):
        pydantic_agent(f"{url}/v1", "gpt-5", kind).run_sync(QUESTION)


@pytest.mark.parametrize("kind", [OpenAIChatModel, PydanticResponsesModel])
def test_pydantic_ai_with_tools(tools_url: str, kind: Any) -> None:
    agent = pydantic_agent(tools_url, FAKE, kind)
    agent.tool_plain(weather)
    assert agent.run_sync(QUESTION).output == "It rains."
    assert asked == ["Ulm"]


# openai-agents


def openai_agent(url: str, model: str = NAME, kind: Any = OpenAIResponsesModel, **settings: Any) -> Any:
    client = openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0)
    limits = agents.ModelSettings(**SHORT if model == FAKE else GREEDY)
    return agents.Agent("reader", model=kind(model, client), model_settings=limits, **settings)


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
def test_openai_agents(url: str, kind: Any) -> None:
    agent = openai_agent(f"{url}/v1", kind=kind)
    assert agents.Runner.run_sync(agent, QUESTION).final_output == expected(PROMPT, MOST)

    async def streamed() -> str:
        result = agents.Runner.run_streamed(openai_agent(f"{url}/v1", kind=kind), QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    assert asyncio.run(streamed()) == expected(PROMPT, MOST)
    king = openai_agent(f"{url}/v1", kind=kind, output_type=King)
    assert isinstance(agents.Runner.run_sync(king, QUESTION).final_output, King)
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        agents.Runner.run_sync(openai_agent(f"{url}/v1", "gpt-5", kind), QUESTION)


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
def test_openai_agents_with_tools(tools_url: str, kind: Any) -> None:
    tool = agents.function_tool(weather, strict_mode=False)
    agent = openai_agent(tools_url, FAKE, kind, tools=[tool])
    assert agents.Runner.run_sync(agent, QUESTION).final_output == "It rains."
    assert asked == ["Ulm"]


# langchain-openai


def chat(url: str, model: str = NAME, **settings: Any) -> langchain_openai.ChatOpenAI:
    return langchain_openai.ChatOpenAI(
        **{"model": model, "base_url": url, "api_key": "any", "max_retries": 0, **GREEDY} | settings
    )


@pytest.mark.parametrize("settings", [{}, {"use_responses_api": True}])
def test_langchain(url: str, settings: dict[str, Any]) -> None:
    model = chat(f"{url}/v1", **settings)
    assert model.invoke(QUESTION).text == expected(PROMPT, MOST)
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == expected(PROMPT, MOST)
    assert isinstance(model.with_structured_output(King).invoke(QUESTION), King)
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        chat(f"{url}/v1", "gpt-5", **settings).invoke(QUESTION)


@pytest.mark.parametrize("settings", [{}, {"use_responses_api": True}])
def test_langchain_with_tools(tools_url: str, settings: dict[str, Any]) -> None:
    model = chat(tools_url, FAKE, **SHORT | settings).bind_tools([weather])
    messages: list[Any] = [HumanMessage(QUESTION)]
    answer = model.invoke(messages)
    assert isinstance(answer, AIMessage)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Ulm"})
    streamed = list(model.stream(messages))
    assert sum(streamed[1:], streamed[0]).tool_calls[0]["args"] == call["args"]
    messages += [answer, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
    assert model.invoke(messages).text == "It rains."
