"""Calls in the forms of different models: which a template means, what is read, what a grammar allows."""

import json
import random
from collections.abc import Sequence as Items
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher

from http_server.answer_format import grammar_of_calls
from http_server.call_formats import FORMATS, CallFormat, format_of
from http_server.errors import ApiError
from http_server.fields import ChatRequest, Tool
from http_server.pieces import AnswerParser, Call, CallParser, Piece, Text
from http_server.thoughts import ThoughtParser
from tests.server.scripted import ScriptTokenizer, scripted_app
from tests.server.servers import MODEL, in_memory
from tests.server.test_tool_calls import arguments_of
from tests.support.schemas import ByteTokenizer
from tiny_llm.structured.grammars import tokenizer_of

XML, TAGGED, BARE = FORMATS
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 9},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "where": {"$ref": "#/$defs/place"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
TOOLS = msgspec.convert(
    [
        {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
        {"type": "function", "function": {"name": "clock"}},
    ],
    list[Tool],
)


def xml(name: str, *values: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def read(form: CallFormat, text: str, size: int) -> tuple[str, list[tuple[str, Any]], int]:
    """The text and the calls of an answer, and in how many pieces the arguments came."""
    parser: CallParser = form.parser(TOOLS)
    pieces: list[Piece] = []
    for start in range(0, len(text), size):
        pieces += parser.add(text[start : start + size])
    pieces += parser.finish()
    names = [piece.name for piece in pieces if isinstance(piece, Call)]
    left = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    arguments = [loaded(each) for each in arguments_of(pieces)]
    return left, list(zip(names, arguments, strict=True)), len(pieces)


def loaded(text: str) -> Any:
    """JSON, or the text itself if it is cut off."""
    try:
        return json.loads(text)
    except ValueError:
        return text


ULM: tuple[str, Any] = ("weather", {"city": "Ulm"})
READ: list[tuple[CallFormat, str, str, list[tuple[str, Any]]]] = [
    (TAGGED, '<tool_call>{"name": "weather", "parameters": {"city": "Ulm"}}</tool_call>', "", [ULM]),
    (TAGGED, '<tool_call>{"arguments": {"city": "Ulm"}, "name": "weather"}</tool_call>', "", [ULM]),
    (TAGGED, '<tool_call>{"name": "weather", "id": 1, "arguments": {"city": "Ulm"}}</tool_call>', "", [ULM]),
    (TAGGED, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Ulm\\"}"}</tool_call>', "", [ULM]),
    (TAGGED, '<tool_call>{"name": "clock"}</tool_call>', "", [("clock", {})]),
    (TAGGED, '<tool_call>{"name": "clock", "arguments": null}</tool_call>', "", [("clock", {})]),
    (
        TAGGED,
        '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>',
        [],
    ),
    (
        TAGGED,
        '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call> \\" }"}}</tool_call> b c',
        " b c",
        [("weather", {"city": '</tool_call> " }'})],
    ),
    (
        TAGGED,
        '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}\n'
        '<tool_call>{"name": "clock", "arguments": {}}</tool_call>',
        "",
        [ULM, ("clock", {})],
    ),
    (TAGGED, '<tool_call>{"name": "weather", "arguments": {"city": "U', "", [("weather", '{"city": "U')]),
    (
        TAGGED,
        '<tool_call>{"name": "weather", "arguments": {"city": </tool_call> x',
        " x",
        [("weather", '{"city": ')],
    ),
    (XML, xml("weather", ("city", "Ulm")), "", [ULM]),
    (XML, f"I look.\n{xml('weather', ('city', 'Ulm'))}\n{xml('clock')}", "I look.", [ULM, ("clock", {})]),
    (
        XML,
        xml(
            "weather",
            ("city", 'a "b"\n<c> ü'),
            ("days", "3"),
            ("unit", "C"),
            ("where", '{"x": 1}'),
            ("note", "3"),
        ),
        "",
        [("weather", {"city": 'a "b"\n<c> ü', "days": 3, "unit": "C", "where": {"x": 1}, "note": "3"})],
    ),
    (XML, xml("weather", ("city", "3"), ("note", "None")), "", [("weather", {"city": "3", "note": None})]),
    (
        XML,
        xml("weather", ("days", "many"), ("unit", "NaN")),
        "",
        [("weather", {"days": "many", "unit": "NaN"})],
    ),
    (XML, xml("weather", ("city", "")), "", [("weather", {"city": ""})]),
    (XML, xml("clock", ("other", "5")), "", [("clock", {"other": "5"})]),
    (XML, xml("weather", ("city", "Ulm")).removeprefix("<tool_call>\n"), "", [ULM]),
    (XML, xml("weather", ("city", "Ulm")).removesuffix("\n</tool_call>") + " So.", " So.", [ULM]),
    (XML, "<tool_call>\n<function=weather>\n<parameter=city>\nUlm", "", [("weather", '{"city": "Ulm')]),
    (XML, "a <tool_call> b <function", "a <tool_call> b <function", []),
    (BARE, '{"name": "weather", "parameters": {"city": "Ulm"}}', "", [ULM]),
    (BARE, '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Ulm"}}', "", [ULM]),
    (
        BARE,
        '{"name": "weather", "parameters": {"city": "Ulm"}}; {"name": "clock", "parameters": {}}',
        "",
        [ULM, ("clock", {})],
    ),
    (BARE, '\n{"parameters": {"city": "Ulm"}, "name": "weather"} Done.', " Done.", [ULM]),
    (BARE, '{"a": {"b": 1}} is JSON.', '{"a": {"b": 1}} is JSON.', []),
    (BARE, '{"a": {"b"', '{"a": {"b"', []),
    (BARE, ' Sure: {"name": "clock", "parameters": {}}', ' Sure: {"name": "clock", "parameters": {}}', []),
    (BARE, "a < b", "a < b", []),
    (BARE, '{"name": "weather", "parameters": {"city": "U', "", [("weather", '{"city": "U')]),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("form", "text", "left", "calls"), READ)
def test_calls_are_read(
    form: CallFormat, text: str, left: str, calls: list[tuple[str, Any]], size: int
) -> None:
    assert read(form, text, size)[:2] == (left, calls)


BITS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "clock>",
        "</function>",
        "<parameter=city>",
        "<parameter=days>",
    ),
    *(
        "</parameter>",
        "<think>",
        "</think>",
        "<|python_tag|>",
        '{"name": "clock", "arguments": ',
        '{"a": "x"}',
    ),
    *("{", "}", "[", "]", '"', "\\", "<", "; ", " ", "\n", "abc", "null"),
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_where_an_answer_is_cut_changes_nothing(form: CallFormat) -> None:
    draw = random.Random(7)
    for _ in range(600):
        text = "".join(draw.choices(BITS, k=draw.randint(1, 12)))
        whole, *others = ([*pieces_of(form, text, size)] for size in (1000, 1, 4))
        assert others == [whole, whole], text


def pieces_of(form: CallFormat, text: str, size: int) -> list[tuple[str, str]]:
    """What an answer consists of, with neighbours of a kind put together."""
    parser = AnswerParser(ThoughtParser(), form.parser(TOOLS))
    cuts = [text[start : start + size] for start in range(0, len(text), size)]
    pieces = [piece for cut in cuts for piece in parser.add(cut, 1, is_last=False)]
    found: list[tuple[str, str]] = []
    for piece in [*pieces, *parser.add("", 0, is_last=True)]:
        kind, said = type(piece).__name__, piece.name if isinstance(piece, Call) else piece.text
        if found and found[-1][0] == kind != "Call":
            said = found.pop()[1] + said
        found.append((kind, said))
    return found


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (TAGGED, '<tool_call>{"name": "weather", "arguments": {"city": "%s"}}</tool_call>' % ("a" * 50)),
        (XML, xml("weather", ("city", "a" * 50))),
        (BARE, '{"name": "weather", "parameters": {"city": "%s"}}' % ("a" * 50)),
    ],
)
def test_arguments_are_passed_on_while_they_are_written(form: CallFormat, text: str) -> None:
    parser: CallParser = form.parser(TOOLS)
    sent = [arguments_of([Call("", ""), *parser.add(character)])[-1] for character in text]
    assert sum(len(each) for each in sent[: text.index("a" * 50) + 25]) >= len('{"city": "') + 20


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ('{{ tools }} <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}', TAGGED),
        ("{{ tools }} <tool_call>\n<function=example>\n<parameter=a>", XML),
        ('{{ tools }} <|start_header_id|> {"name": function name, "parameters": dictionary}', BARE),
        ("{{ tools }} <|python_tag|>", BARE),
    ],
)
def test_the_template_says_which_form(template: str, form: CallFormat) -> None:
    assert format_of(template) is form


@pytest.mark.parametrize(
    "template", ["{{ tools }}", "{{ tools }} [TOOL_CALLS]", "<tool_call> arguments <arg_key>"]
)
def test_an_unknown_form_is_refused(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApiError, match="Hermes and Qwen, Llama 3's JSON") as raised:
        format_of(template)
    assert raised.value.body.param == "tools"
    monkeypatch.setattr(ScriptTokenizer, "chat_template", template)
    app, _ = scripted_app("Hi.", 2)
    with in_memory(app) as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}]}
        tool = {"type": "function", "function": {"name": "a"}}
        path = "/v1/chat/completions"
        assert client.post(path, json=body).status_code == 200
        if "tools" in template:
            assert client.post(path, json=body | {"tools": [tool], "tool_choice": "none"}).status_code == 200
        response = client.post(path, json=body | {"tools": [tool]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def allows(grammar: str, text: str) -> bool:
    """Whether a whole text is an answer by a grammar."""
    matcher = LLMatcher(tokenizer_of(ByteTokenizer()), LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = ByteTokenizer().encode(text)
    if matcher.validate_tokens(ids) < len(ids):
        return False
    matcher.consume_tokens(ids)
    return bool(matcher.is_accepting())


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "A"}], "tools": msgspec.to_builtins(TOOLS)}
    return msgspec.convert(body | fields, ChatRequest)


RIGHT = {
    XML: xml("weather", ("city", "Ulm"), ("days", "3"), ("unit", "C"), ("where", '{"x": 1}')),
    TAGGED: '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}\n</tool_call>',
    BARE: '{"name": "weather", "parameters": {"city": "Ulm", "days": 3}}',
}
WRONG = {
    XML: [
        xml("weather", ("days", "3")),
        xml("weather", ("city", "x" * 10)),
        xml("weather", ("city", "a"), ("unit", "K")),
    ],
    TAGGED: ['<tool_call>\n{"name": "weather", "arguments": {"days": 3}}\n</tool_call>'],
    BARE: ['{"name": "weather", "parameters": {"days": 3}}'],
}
STRICT = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("fields", "num_calls"),
    [
        ({"tool_choice": "required"}, (1, 2)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, (1,)),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, (1,)),
        ({"tools": STRICT}, (0, 1, 2)),
    ],
)
def test_a_grammar_has_the_form_that_is_read(
    form: CallFormat, fields: dict[str, Any], num_calls: Items[int]
) -> None:
    grammar = grammar_of_calls(chat(**fields), form)
    for number in range(3):
        text = form.separator.join([RIGHT[form]] * number) if number else "Hello."
        assert allows(grammar, text) == (number in num_calls), text
        if number in num_calls:
            assert len(read(form, text, 3)[1]) == number
    for wrong in WRONG[form]:
        assert not allows(grammar, wrong), wrong


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_thought_is_free_before_strict_calls(form: CallFormat) -> None:
    grammar = grammar_of_calls(chat(tools=STRICT), form)
    wrong = WRONG[form][0]
    assert allows(grammar, f"<think>{wrong}</think>Hello.")
    assert not allows(grammar, "<think>never ends")
    if form is not BARE:
        assert not allows(grammar, f"<think>a</think>{wrong}")
        assert allows(grammar, f"<think>a</think>{RIGHT[form]}")


def test_what_a_grammar_of_texts_cannot_keep_is_refused() -> None:
    properties = {"city": {"type": "string", "format": "date"}}
    for parameters in ({"properties": properties}, {"properties": properties, "minProperties": 1}):
        tool = {"type": "function", "function": {"name": "a", "parameters": parameters}}
        with pytest.raises(ApiError, match=r"format|minProperties") as raised:
            grammar_of_calls(chat(tools=[tool], tool_choice="required"), XML)
        assert raised.value.body.param == "tools"
