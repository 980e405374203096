"""What users may ask for as structured output, what is refused, and what becomes of grammars in an engine."""

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import numpy as np
import pytest

from kernel_runtime.checkpoint import load_tokenizer
from tests.support.check import check_value_error
from tests.support.engines import drafting_engine, overlapping_engine
from tests.support.fakes import EOS, VOCAB_SIZE, FakeModel, FakeTokenizer, prompt_of
from tests.support.schedules import IdTokenizer
from tests.support.schemas import ByteTokenizer, TableModel
from tiny_llm import (
    BlockManager,
    Engine,
    GrammarDrafter,
    LookupDrafter,
    Request,
    SamplingParams,
    ScheduledTokens,
    SchedulerConfig,
    Sequence,
    StructuredOutputsParams,
    UnlimitedBlocks,
)
from tiny_llm.engine.adjusted_logits import adjust_logits
from tiny_llm.engine.engine_request import EngineRequest
from tiny_llm.model.engine_operations import EngineOperations
from tiny_llm.scheduling.blocks import Blocks
from tiny_llm.simulation.cost_model import CostModel
from tiny_llm.speculation.adaptive_drafter import AdaptiveDrafter
from tiny_llm.speculation.draft_cost import DraftCost
from tiny_llm.speculation.drafter import Drafter, Drafts, extended
from tiny_llm.structured import grammars
from tiny_llm.structured import step_masks as constraints
from tiny_llm.structured.grammars import MOST_CHARACTERS, compile_grammar, compiled, tokenizer_of
from tiny_llm.structured.json_formats import KNOWN_FORMATS, without_unknown_formats
from tiny_llm.structured.json_whitespace import bounded
from tiny_llm.structured.masks import MaskedRow, executor, fill_masks, mask_rows_simple
from tiny_llm.structured.step_masks import Masks, constrain, constraint_of

MODEL = Path(__file__).parents[2] / "models" / "qwen3-kjv-4m"
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("exactly one", {}),
    ("exactly one", {"json": {}, "regex": "a"}),
    ("exactly one", {"json_object": False}),
    ("json", {"json": "{"}),
    ("json", {"json": "[1]"}),
    ("json", {"json": 7}),
    ("json", {"json": {"a": {1, 2}}}),
    ("json_object", {"json_object": "yes"}),
    ("regex", {"regex": 5}),
    ("grammar", {"grammar": ["start: a"]}),
    ("choice", {"choice": "yes"}),
    ("choice", {"choice": []}),
    ("choice", {"choice": ["yes", ""]}),
    ("choice", {"choice": ["yes", 1]}),
    ("disable_any_whitespace", {"json_object": True, "disable_any_whitespace": 1}),
]


@pytest.mark.parametrize(("name", "values"), REFUSED)
def test_what_makes_no_sense_is_refused_by_name(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        StructuredOutputsParams(**values)


def test_parameters_are_text_and_can_be_compared() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    params = StructuredOutputsParams(json=schema)
    schema["type"] = "array"
    assert params.json == '{"type": "object", "properties": {"b": {}, "a": {}}}'
    assert params == StructuredOutputsParams(json=params.json)
    assert len({params, StructuredOutputsParams(json=params.json)}) == 1
    assert StructuredOutputsParams(choice=["a", "b"]).choice == ("a", "b")


def test_other_parameters_refuse_what_is_no_structured_output() -> None:
    with pytest.raises(ValueError, match="structured_outputs"):
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]


def test_week_2_knows_no_grammars() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True))
    with pytest.raises(ValueError, match="structured_outputs needs the engine of week 3"):
        Request(FakeModel(), FakeTokenizer(), prompt_of(3), params=params)  # type: ignore[arg-type]


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("Invalid type: foo", {"json": {"type": "foo"}}),
    ('"not"', {"json": {"not": {"type": "string"}}}),
    ('"uniqueItems"', {"json": {"type": "array", "uniqueItems": True}}),
    ("Unsatisfiable", {"json": {"type": "integer", "minimum": 5, "maximum": 3}}),
    ("not present in a registry", {"json": {"$ref": "http://example.com/schema"}}),
    ("unclosed group", {"regex": "(a"}),
    ("unknown name", {"grammar": "start: foo"}),
]


@pytest.mark.parametrize(("reason", "values"), UNSUPPORTED)
def test_what_cannot_be_kept_is_refused_with_the_reason(reason: str, values: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**values))
    with Engine(TableModel(1), ByteTokenizer(), None, 64, BlockManager(20, 8)) as engine:  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="structured_outputs") as caught:
            engine.add_request("x", params)
        assert reason in str(caught.value)
        assert "<" not in str(caught.value).replace("<example", "")
        assert not engine.requests
        assert not engine.scheduler.sequences
        assert engine.add_request("x") == 0


def test_what_no_token_can_begin_is_refused() -> None:
    with pytest.raises(ValueError, match="no token"):
        compile_grammar(StructuredOutputsParams(regex="[xyz]+"), IdTokenizer())


def test_a_tokenizer_without_bytes_is_refused() -> None:
    class Bare:
        eos_token_ids = {0}

    with pytest.raises(ValueError, match="Bare"):
        compile_grammar(StructuredOutputsParams(regex="a"), Bare())  # type: ignore[arg-type]


def test_a_tokenizer_is_looked_at_once_unless_its_ends_change() -> None:
    tokenizer = FakeTokenizer()
    first = tokenizer_of(tokenizer)
    assert tokenizer_of(tokenizer) is first
    tokenizer.eos_token_ids = {EOS, 5}
    assert tokenizer_of(tokenizer).eos_tokens == [EOS, 5]
    is_there = ref(tokenizer)
    del tokenizer
    assert is_there() is None, "it is kept although nothing else knows it"


def test_no_end_of_text_is_part_of_an_answer() -> None:
    constraint = compile_grammar(
        StructuredOutputsParams(regex="[A-F]+"), FakeTokenizer(eos_token_ids=(EOS, 5, 3))
    )
    assert constraint.end_ids == {EOS, 3, 5}
    for end in (EOS, 3, 5):
        assert constraint.allowed_prefix([1, 2, end, 1]) == [1, 2]


def test_forced_text_is_not_spelled_with_an_end_of_text() -> None:
    spelled = ["", "A", "B", "AB", *(f"<{i}>" for i in range(4, VOCAB_SIZE))]
    params = StructuredOutputsParams(regex="AB")
    for end_ids, forced in (((EOS,), [3]), ((EOS, 3), [1, 2])):
        assert compile_grammar(params, FakeTokenizer(spelled, end_ids)).forced_tokens() == forced


def test_a_compiled_grammar_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = FakeTokenizer()
    params = compiled(StructuredOutputsParams(regex="AB"), tokenizer)
    monkeypatch.setattr(grammars, "grammar_text", None)
    assert compiled(params, tokenizer) is params
    first, second = (compile_grammar(params, tokenizer) for _ in range(2))
    first.advance([1])
    assert second.forced_tokens() == [1, 2], "two requests have places of their own"


def test_a_tokenizer_keeps_its_settings() -> None:
    tokenizer = load_tokenizer(MODEL)
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    text = "In the beginning God created"
    forced = compile_grammar(StructuredOutputsParams(choice=[text]), tokenizer).forced_tokens()
    assert tokenizer.decode(forced) == text, "limits of the tokenizer are not the grammar's"
    assert backend.truncation["max_length"] == 2
    assert backend.padding["length"] == 9


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        ({"choice": ["yes", 'n"o', "maybe\n"]}, 'yes|n"o|maybe\n'),
        ({"choice": ["é", "日本", "😀\x7f"]}, "é|日本|😀\x7f"),
        ({"regex": "[a-c]{2,4}!"}, "[a-c]{2,4}!"),
        ({"grammar": 'start: "<" word ("," word)? ">"\nword: /[a-z]{1,3}/'}, "<[a-z]{1,3}(,[a-z]{1,3})?>"),
    ],
)
def test_each_kind_of_grammar_is_kept(values: dict[str, Any], pattern: str) -> None:
    params = SamplingParams(1.0, seed=3, max_tokens=60, structured_outputs=StructuredOutputsParams(**values))
    with Engine(TableModel(2), ByteTokenizer(), None, 90, BlockManager(60, 8)) as engine:  # type: ignore[arg-type]
        for result in engine.generate(["x", "y"], params):
            assert re.fullmatch(pattern, result.text)
            assert result.finish_reason == "stop"


def test_any_object_and_whitespace() -> None:
    for is_disabled in (False, True):
        outputs = StructuredOutputsParams(json_object=True, disable_any_whitespace=is_disabled)
        params = [
            SamplingParams(1.0, seed=seed, max_tokens=200, structured_outputs=outputs) for seed in range(6)
        ]
        with Engine(TableModel(3), ByteTokenizer(), None, 220, BlockManager(200, 8)) as engine:  # type: ignore[arg-type]
            finished = [each for each in engine.generate(["x"] * 6, params) if each.finish_reason == "stop"]
        assert finished
        assert all(isinstance(json.loads(each.text), dict) for each in finished)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"a":1,"b":2}', (True, True)),
        ('{"a": 1, "b": 2}', (True, False)),
        ('{\n\t"a": 1,\n  "b": 2\n}', (True, False)),
        (f'{{\n{64 * " "}"a":1}}', (True, False)),
        (f'{{\n{65 * " "}"a":1}}', (False, False)),
        ('{\n\n"a":1}', (False, False)),
    ],
)
@pytest.mark.parametrize(
    "values",
    [
        {"json_object": True},
        {"json": {"type": "object"}},
        {"json": {"type": "object", "x-guidance": {"whitespace_pattern": "[ ]*"}}},
        {"grammar": 'start: %json {"type": "object"}'},
        {"grammar": "start: text?\ntext: %json{}"},
        {"grammar": 'start: %json {"x-guidance": {"whitespace_pattern": "[ ]*"}, "type": "object"}'},
        {"grammar": 'start: a | b\na: "%json {}" // %json {}\nb: %json\n{"type": "object"}'},
    ],
)
def test_whitespace_has_an_end(values: dict[str, Any], text: str, is_allowed: tuple[bool, bool]) -> None:
    for is_disabled, expected in zip((False, True), is_allowed, strict=True):
        outputs = StructuredOutputsParams(**values, disable_any_whitespace=is_disabled)
        drafts = [byte + 1 for byte in text.encode()]
        allowed = compile_grammar(outputs, ByteTokenizer()).allowed_prefix(drafts)
        assert (allowed == drafts) == expected


def test_a_grammar_that_must_end_overrules_a_minimum_length() -> None:
    params = SamplingParams(
        min_tokens=9, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="AB")
    )
    with Engine(FakeModel(), FakeTokenizer(), None, 60, BlockManager(40, 4)) as engine:  # type: ignore[arg-type]
        (result,) = engine.generate([prompt_of(4)], params)
    assert (result.text, result.finish_reason) == ("AB", "stop")


def test_each_row_has_its_own_end() -> None:
    regexes = ["AB", "[AB]*", None, "A"]
    sequences = [Sequence(id, [7]) for id in range(4)]
    for sequence, regex in zip(sequences, regexes, strict=True):
        if regex is not None:
            constraint = compile_grammar(StructuredOutputsParams(regex=regex), FakeTokenizer())
            constraint.advance([1, 2][: len(regex)])
            constrain(sequence, constraint)
        sequence.token_ids += [1, 2] if regex != "A" else [1]
    entries = [ScheduledTokens(each, 0, each.num_tokens, True) for each in sequences]
    params = dict.fromkeys(range(4), SamplingParams(min_tokens=9, stop_token_ids=(EOS,)))
    for order in ([0, 1, 2, 3], [1, 0, 3, 2]):
        found = np.array(adjust_logits(mx.zeros((4, 61)), [entries[row] for row in order], params))
        allowed = {
            id: np.flatnonzero(np.isfinite(row)).tolist() for id, row in zip(order, found, strict=True)
        }
        assert allowed == {0: [EOS], 1: [1, 2], 2: list(range(1, 61)), 3: [EOS]}


def test_a_token_that_the_tokenizer_lacks_is_forbidden() -> None:
    sequence = Sequence(0, [7])
    constrain(sequence, compile_grammar(StructuredOutputsParams(regex="[A-F]+"), FakeTokenizer()))
    logits = mx.zeros((1, 200))  # a model may have more rows than its tokenizer has tokens
    found = adjust_logits(logits, [ScheduledTokens(sequence, 0, 1, True)], {0: SamplingParams()})
    assert np.flatnonzero(np.isfinite(np.array(found)[0])).tolist() == [1, 2, 3, 4, 5, 6]


def test_a_stop_token_ends_an_answer_that_its_grammar_would_go_on_with() -> None:
    request = EngineRequest(
        Sequence(0, [7], max_num_tokens=20),
        FakeTokenizer(),
        SamplingParams(stop_token_ids=(5,), structured_outputs=StructuredOutputsParams(regex="A[EF]B")),
    )
    request.accept(1)
    request.accept(5)
    assert (request.token_ids, request.finish_reason) == ([1], "stop")


def test_an_answer_that_ends_before_its_grammar_does_is_incomplete() -> None:
    sequence = Sequence(0, [1, 2], max_num_tokens=20)
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="ABC"))
    request = EngineRequest(sequence, FakeTokenizer(), params)
    request.accept(1)
    request.accept(EOS)  # what a matcher that gave up leaves
    assert request.finish_reason == "error"


DEAD_END = {
    "type": "object",
    "properties": {"a": {"const": 1}},
    "required": ["a"],
    "additionalProperties": False,
    "patternProperties": {"^a$": {"const": 1}},
}
"""After the first comma, no key may follow: `a` is taken. (llguidance's issue 265)"""


@pytest.mark.parametrize("min_tokens", [0, 60])
@pytest.mark.parametrize(
    "kind", [Engine, overlapping_engine, drafting_engine], ids=["in turn", "overlapped", "with drafts"]
)
def test_a_grammar_that_cannot_go_on_ends_its_answer_with_an_error(
    kind: type[Engine], min_tokens: int
) -> None:
    outputs = StructuredOutputsParams(json=DEAD_END, disable_any_whitespace=True)
    bound = SamplingParams(
        1.0,
        seed=2,
        min_tokens=min_tokens,
        max_tokens=60,
        logit_bias={1 + ord("}"): -100.0},
        structured_outputs=outputs,
    )
    params = [bound, SamplingParams(max_tokens=30), bound]
    with kind(TableModel(2), ByteTokenizer(), None, 90, BlockManager(60, 8)) as engine:  # type: ignore[arg-type]
        results = engine.generate(["x", "y", "z"], params)
        assert [each.finish_reason for each in results] == ["error", "length", "error"]
        assert results[0].text == results[2].text == '{"a":1,'
        assert engine.generate(["y"], params[1])[0].text == results[1].text, "the engine goes on"


UNKNOWN_FORMATS = [
    "password",
    "path",
    "binary",
    "uuid4",
    "uri-reference",
    "json-string",
    "int32",
    "idn-email",
    "",
]


@pytest.mark.parametrize("format", UNKNOWN_FORMATS)
def test_a_format_that_the_standard_leaves_open_asserts_nothing(format: str) -> None:
    text = {"type": "string", "maxLength": 3, "format": format}
    for outputs in (
        StructuredOutputsParams(json={"$defs": {"t": text}, "anyOf": [{"$ref": "#/$defs/t"}]}),
        StructuredOutputsParams(grammar=f"start: %json {json.dumps(text)}"),
    ):
        constraint = compile_grammar(outputs, ByteTokenizer())
        for answer, is_allowed in (('"abc"', True), ('"abcd"', False)):
            drafts = [byte + 1 for byte in answer.encode()]
            assert (constraint.allowed_prefix(drafts) == drafts) == is_allowed


@pytest.mark.parametrize("format", sorted(KNOWN_FORMATS - {"unknown"}))
def test_a_known_format_is_kept(format: str) -> None:
    outputs = StructuredOutputsParams(json={"type": "string", "format": format})
    drafts = [byte + 1 for byte in b'"a b"']
    assert compile_grammar(outputs, ByteTokenizer()).allowed_prefix(drafts) != drafts


def test_only_the_keyword_format_is_taken_out() -> None:
    schema = {
        "properties": {
            "format": {"type": "string", "format": "date"},
            "const": {"items": [{"format": "odd"}]},
            "kind": {"const": {"format": "odd"}, "default": {"format": "odd"}},
        },
        "required": ["format"],
        "if": {"not": {"format": "odd"}},
    }
    expected = json.loads(json.dumps(schema))
    del expected["properties"]["const"]["items"][0]["format"], expected["if"]["not"]["format"]
    assert json.loads(without_unknown_formats(json.dumps(schema))) == expected


def test_a_schema_nested_deeply_is_searched_for_formats() -> None:
    depth = 900
    text = '{"items":' * depth + '{"format": "odd"}' + "}" * depth
    assert without_unknown_formats(text) == json.dumps(json.loads(text.replace('"format": "odd"', "")))


def test_rows_of_others_are_not_touched() -> None:
    free, bound = Sequence(0, [3, 4]), Sequence(1, [5])
    constrain(bound, compile_grammar(StructuredOutputsParams(regex="B"), FakeTokenizer()))
    entries = [ScheduledTokens(each, 0, each.num_tokens, True) for each in (free, bound)]
    logits = mx.random.normal((2, 64), key=mx.random.key(1))
    adjusted = np.array(adjust_logits(logits, entries, {0: SamplingParams(), 1: SamplingParams()}))
    assert adjusted[0].tobytes() == np.array(logits)[0].tobytes()
    assert np.flatnonzero(np.isfinite(adjusted[1])).tolist() == [2]
    assert adjust_logits(logits, entries[:1], {0: SamplingParams()}) is logits


@pytest.mark.parametrize("blocks", [BlockManager(9, 4), UnlimitedBlocks()], ids=["paged", "dense"])
def test_rows_are_masked_as_the_model_s_operations_say(blocks: Blocks) -> None:
    model, calls = FakeModel(), []

    def counted(logits: mx.array, rows: mx.array, bits: mx.array) -> mx.array:
        calls.append(rows.tolist())
        return mask_rows_simple(logits, rows, bits)

    model.operations = EngineOperations(mask_rows=lambda: counted)
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2)
    with Engine(model, FakeTokenizer(), config, 12, blocks) as engine:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="ABC"), max_tokens=3)
        engine.generate([prompt_of(3)], params)
    assert calls == [[0]] * 3


def test_a_constraint_lives_as_long_as_its_sequence() -> None:
    before = len(constraints._known)
    sequence = Sequence(7, [3])
    constrain(sequence, compile_grammar(StructuredOutputsParams(regex="A+"), FakeTokenizer()))
    longer = extended(sequence, [1, 1])
    assert constraint_of(longer) is constraint_of(sequence) is not None
    assert constraint_of(extended(Sequence(8, [3]), [1])) is None
    assert (
        len(Masks.filled_beside(mx.zeros((1, 1)), [ScheduledTokens(longer, 0, 3, True)]).rows[0].draft_ids)
        == 2
    )
    del sequence, longer
    assert len(constraints._known) == before


def test_overlapped_steps_wait_for_grammars() -> None:
    params = SamplingParams(max_tokens=9, structured_outputs=StructuredOutputsParams(regex="[A-F]{3}Z+"))
    answers = []
    for kind in (Engine, overlapping_engine):
        with kind(FakeModel(), FakeTokenizer(), SchedulerConfig(20, 3), 60, BlockManager(40, 4)) as engine:  # type: ignore[arg-type]
            prompts = [prompt_of(4), prompt_of(6, 1), prompt_of(5, 2)]
            answers.append(engine.generate(prompts, [params, SamplingParams(max_tokens=9), params]))
    assert answers[0] == answers[1]


def test_a_prompt_is_no_part_of_the_answer() -> None:
    params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(regex="AB"))
    with Engine(FakeModel(), FakeTokenizer(), None, 60, BlockManager(40, 4)) as engine:  # type: ignore[arg-type]
        assert engine.generate([[30, 31, 1]], params)[0].text == "AB"


def test_a_refused_token_is_named() -> None:
    constraint = compile_grammar(StructuredOutputsParams(regex="AB"), FakeTokenizer())
    with check_value_error(token=3, place=1):
        constraint.advance([1, 3])


def test_forced_tokens_are_drafted_while_the_drafter_rests() -> None:
    def engine_with(drafter: Drafter) -> Engine:
        engine = drafting_engine(
            FakeModel(),  # type: ignore[arg-type]
            FakeTokenizer(),
            SchedulerConfig(20, 3),
            60,
            BlockManager(40, 4),
            drafter=drafter,
        )
        bound = StructuredOutputsParams(regex="(AB|BA)[A-F]{6}ABCDEF[A-F]{6}")
        engine.add_request(prompt_of(4), SamplingParams(max_tokens=30, structured_outputs=bound))
        engine.add_request(prompt_of(5) * 3, SamplingParams(max_tokens=30))
        return engine

    class Asleep(LookupDrafter):
        def wanted(self, entries: Items[ScheduledTokens]) -> dict[int, int]:
            return dict.fromkeys([entry.sequence.id for entry in entries], 1)

        def propose(self, output: object, granted: Mapping[int, int], params: object) -> Drafts:
            return Drafts({id: [40] * number for id, number in granted.items()})  # always wrong

    cost = DraftCost({1: CostModel(0.0, 1.0)})  # drafts never pay
    with engine_with(AdaptiveDrafter(Asleep(), cost)) as engine:
        steps = []
        while engine.has_unfinished_requests:
            steps.append(engine.step())
    drafts = [entry.draft_ids for step in steps for entry in step.scheduled.final if entry.draft_ids]
    assert [each for each in drafts if 40 not in each] == [(1,), (1, 2, 3, 4, 5, 6)]
    assert sum(40 in each for each in drafts) <= 2
    with engine_with(LookupDrafter()) as engine:
        expected = {}
        while engine.has_unfinished_requests:
            expected |= {each.prompt_idx: each.token_ids for each in engine.step().finished}
    assert {each.prompt_idx: each.token_ids for step in steps for each in step.finished} == expected


def test_a_drafter_rests_with_the_other_unless_a_decode_is_forced() -> None:
    class Tired(LookupDrafter):
        is_resting = True

        def rests(self, sequences: Items[Sequence]) -> bool:
            return self.is_resting

    decode, prefill, free = Sequence(0, [3, 4]), Sequence(1, [3, 4]), Sequence(2, [5])
    constrain(decode, compile_grammar(StructuredOutputsParams(regex="[AB]C[AB]"), FakeTokenizer()))
    constrain(prefill, compile_grammar(StructuredOutputsParams(regex="AB"), FakeTokenizer()))
    decode.num_computed_tokens = 1
    drafter = GrammarDrafter(Tired())
    assert drafter.rests([decode, prefill, free])
    constraint = constraint_of(decode)
    assert constraint is not None
    constraint.advance([1])
    assert not drafter.rests([decode, prefill, free])
    assert drafter.rests([prefill, free])
    drafter.drafter.is_resting = False  # type: ignore[attr-defined]
    assert not drafter.rests([free])


def test_a_drafter_keeps_to_grammars_only_in_steps_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for kind in (GrammarDrafter, LookupDrafter):
        for name in ("wanted", "propose"):
            original = getattr(kind, name)
            monkeypatch.setattr(
                kind, name, lambda *args, k=kind, f=original: asked.append(k.__name__) or f(*args)
            )
    bound = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[AB]+"), max_tokens=3)
    blocks = BlockManager(40, 4)
    with drafting_engine(FakeModel(), FakeTokenizer(), None, 60, blocks) as engine:
        for params in (SamplingParams(max_tokens=3), bound, SamplingParams(max_tokens=3)):
            asked.clear()
            engine.generate([prompt_of(4)], params)
            assert ("GrammarDrafter" in asked) == (params is bound)
            assert asked.count("LookupDrafter") >= asked.count("GrammarDrafter")


def test_what_ends_reaches_the_other_drafter() -> None:
    class Noting(LookupDrafter):
        released: list[int] = []
        is_closed = False

        def release(self, sequence_id: int) -> None:
            self.released.append(sequence_id)

        def close(self) -> None:
            self.is_closed = True

    other = Noting()
    drafter, sequence = GrammarDrafter(other), Sequence(3, [7])
    constrain(sequence, compile_grammar(StructuredOutputsParams(regex="AB"), FakeTokenizer()))
    drafter.wanted([ScheduledTokens(sequence, 0, 1, True)])
    assert drafter.forced == {3: [1, 2]}
    drafter.release(3)
    drafter.release(4)  # unknown
    assert drafter.forced == {}
    assert other.released == [3, 4]
    drafter.close()
    assert other.is_closed


def test_all_steps_share_the_threads_that_compute_masks() -> None:
    assert executor() is executor()


@pytest.mark.parametrize(
    "lark",
    [
        'start: "%json {}"',
        r'start: "\"%json {}"',
        "start: /%json {}/",
        'start: "a" // %json {}',
        'start: "a" # %json {}',
        "start: %json true",
        'start: %json {"type": ',
        'start: %json {"x-guidance": 5}',
    ],
)
def test_only_schemas_in_a_grammar_are_bounded(lark: str) -> None:
    assert bounded(lark, {"whitespace_flexible": False}) == lark


def test_a_bounded_schema_keeps_the_rest_of_its_options() -> None:
    lark = 'start: %json {"x-guidance": {"item_separator": ";", "whitespace_pattern": " *"}} "b"'
    schema = bounded(lark, {"whitespace_pattern": "z"}).removeprefix("start: %json ").removesuffix(' "b"')
    assert json.loads(schema)["x-guidance"] == {"item_separator": ";", "whitespace_pattern": "z"}


def test_a_grammar_in_another_form_than_lark_is_refused() -> None:
    outputs = StructuredOutputsParams(grammar='{"grammars": [{"json_schema": {"type": "object"}}]}')
    with pytest.raises(ValueError, match="can't be kept"):
        compile_grammar(outputs, ByteTokenizer())


def chain(number: int, link: str, last: str) -> str:
    """Rules each of which needs the next one."""
    rules = [link.format(i, i + 1) for i in range(number)]
    return "\n".join([*rules, last.format(number)])


CHAIN_END = '"a{0}": {{"type": "string"}}'
LINK = '"a{0}": {{"type": "object", "properties": {{"x": {{"$ref": "#/$defs/a{1}"}}}}}},'
CHAINS = {
    "of terminals": {"grammar": "start: A0\n" + chain(9000, 'A{0}: "x" A{1}', 'A{0}: "e"')},
    "of rules": {"grammar": "start: a0\n" + chain(5000, 'a{0}: "x" a{1} | /b/', 'a{0}: "e"')},
    "of references": {"json": f'{{"$ref": "#/$defs/a0", "$defs": {{{chain(2500, LINK, CHAIN_END)}}}}}'},
}


@pytest.mark.parametrize("values", list(CHAINS.values()), ids=list(CHAINS))
def test_a_long_chain_does_not_end_the_process(values: dict[str, Any]) -> None:
    constraint = compile_grammar(StructuredOutputsParams(**values), ByteTokenizer())
    assert len(fill_masks([MaskedRow(0, constraint)])) == 1


def test_a_grammar_that_is_too_long_or_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_CHARACTERS} are allowed"):
        compile_grammar(StructuredOutputsParams(regex="a" * MOST_CHARACTERS), ByteTokenizer())
    monkeypatch.setattr(grammars, "MOST_SECONDS", 0.2)
    patterns = " & ".join(f"/.*{number}.*/" for number in range(100))  # seconds, on any machine
    with pytest.raises(ValueError, match=r"compiling takes more than 0.2 s; make it simpler"):
        compile_grammar(StructuredOutputsParams(grammar=f"start: A\nA: {patterns}"), ByteTokenizer())
