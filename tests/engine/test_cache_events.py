"""Whoever follows the events of a prefix cache knows what it holds, whatever the engine does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.cache_events import EventSchedule, check_law, event_schedules
from tests.support.engines import overlapping_engine
from tests.support.prefixes import HASHES, live, manager, sequence_of
from tests.support.speculation import DRAFTERS, speculative
from tiny_llm import Engine, PrefixCachingBlockManager, Sequence
from tiny_llm.scheduling.block_hashes import Prefix
from tiny_llm.scheduling.cache_events import BlockRemoved, BlockStored, CacheContents, CacheEvent, CacheEvents
from tiny_llm.scheduling.cache_salts import salt_sequence
from tiny_llm.scheduling.content_hashes import ContentHashes, cbor, short_hash
from tiny_llm.scheduling.observed_cache import CacheObserver, ObservedBlocks, observe

pytestmark = pytest.mark.usefixtures("on_cpu")
KINDS: dict[str, Callable[..., Engine]] = {
    "plain": Engine,
    "overlapping": overlapping_engine,
    "drafts": speculative(DRAFTERS["noise"]),
}
no_health_checks = {"suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=15, **no_health_checks)
@given(drawn=event_schedules())
def test_events_tell_what_the_cache_holds(kind: str, drawn: EventSchedule) -> None:
    check_law(drawn, KINDS[kind])


class Early(CacheEvents):
    """Tells of a block before its last token is there."""

    def event_of(self, prefix: Prefix) -> BlockStored:
        event = super().event_of(prefix)
        return replace(event, token_ids=event.token_ids[:-1])


class Twice(CacheEvents):
    """Tells of a block again when the next one is stored."""

    def stored(self, prefix: Prefix, block: int) -> None:
        if prefix.parent is not None and prefix.parent.token_ids:
            super().stored(prefix.parent, block)
        super().stored(prefix, block)


class LastParent(CacheEvents):
    """Takes the block that was stored last for the one before."""

    last: int | None = None

    def event_of(self, prefix: Prefix) -> BlockStored:
        event = super().event_of(prefix)
        self.last, before = event.block_hash, self.last
        return event if event.parent_block_hash is None else replace(event, parent_block_hash=before)


class Sorted(CacheEvents):
    """Tells of all that was stored in a step before it tells what was removed."""

    def take(self) -> list[CacheEvent]:
        return sorted(super().take(), key=lambda event: isinstance(event, BlockRemoved))


class Forgetful(CacheEvents):
    """Does not tell that the engine was replaced."""

    def cleared(self) -> None:
        self._events = []


class Loyal(CacheEvents):
    """Tells that the engine was replaced, after what the failed one did."""

    def cleared(self) -> None:
        kept = self._events
        super().cleared()
        self._events += kept


class Unsalted(CacheEvents):
    """Knows of no salts."""

    def event_of(self, prefix: Prefix) -> BlockStored:
        return replace(super().event_of(prefix), cache_salt=None)


class Kept(ObservedBlocks):
    """Says nothing of what is evicted."""

    def __delitem__(self, prefix: Prefix) -> None:
        del self.data[prefix]


def observe_without_eviction(blocks: PrefixCachingBlockManager, observer: CacheObserver) -> None:
    observer.cleared()
    blocks.block_of = Kept(blocks.block_of, observer)


WRONG = {
    kind.__name__: (kind, observe) for kind in (Early, Twice, LastParent, Sorted, Forgetful, Loyal, Unsalted)
}
WRONG["Kept"] = (CacheEvents, observe_without_eviction)


@pytest.mark.parametrize("name", WRONG)
def test_the_law_catches(name: str) -> None:
    kind, watch = WRONG[name]

    @settings(max_examples=60, database=None, derandomize=True, phases=[Phase.generate], **no_health_checks)
    @given(drawn=event_schedules())
    def law(drawn: EventSchedule) -> None:
        check_law(drawn, Engine, watch, kind)

    with pytest.raises(AssertionError):
        law()


def test_an_observer_hears_of_what_is_there_and_of_all_ways_to_change_it() -> None:
    blocks, contents = manager(), CacheContents()
    live(blocks, range(6))
    first, second = CacheEvents(), CacheEvents()
    for events in (first, second):
        observe(blocks, events)
    live(blocks, range(9), 1)
    third = list(blocks.block_of)[-1]
    blocks.block_of.pop(third)
    blocks.block_of.update({third: 3})
    blocks.block_of[third] = 5  # another block for what is there already
    told = first.take()
    assert told == second.take()
    assert len(told) == 1 + 3 + 1 + 1
    contents.apply(told)
    assert len(contents.blocks) == len(blocks.block_of) == 3
    blocks.forget_contents()
    contents.apply(first.take())
    assert (contents.blocks, first.take()) == ({}, [])


def test_hashes_are_those_that_vllm_computes() -> None:
    """Computed with cbor2 6.3, as sha256(cbor2.dumps((parent, token_ids, extra_keys), canonical=True))."""
    first = tuple(range(1, 17))
    second = (0, 23, 24, 255, 256, 65535, 65536, 151643, 2**31, *[7] * 7)
    blocks = PrefixCachingBlockManager(9, 16)
    plain, salted = sequence_of([*first, *second]), Sequence(1, first)
    salt_sequence(salted, "tenant é")
    prefixes, hashes = [*blocks.prefixes.of(plain), *blocks.prefixes.of(salted)], ContentHashes("0")
    assert hashes.root.hex() == "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
    assert [hashes.of(prefix).hex() for prefix in prefixes] == [
        "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
        "590cac47bdf297a3bbced409fd76559c0d61127bc98c802cec8aefae31056e16",
        "00fad5079660b49ff6b4a064ee8bef121c5a09908a9036e6a4af6d4a1a1320df",
    ]
    assert [short_hash(hashes.of(prefix)) for prefix in prefixes] == [
        3236607068019569386,
        17044699271162850838,
        11866823708177015007,
    ]
    (other,) = PrefixCachingBlockManager(9, 4).prefixes.of(sequence_of([1, 2, 3, 4]))
    assert ContentHashes("42").of(other).hex() == (
        "0a99040f25d8a5f22275b867f403918da98c9d140eaea10f5319d4d1d84429df"
    )


@pytest.mark.parametrize(
    ("item", "encoded"),
    [
        ((), "80"),
        (None, "f6"),
        ("", "60"),
        ((10, b"\x01", "ü"), "830a410162c3bc"),
        (1000000000000, "1b000000e8d4a51000"),
        ((1,) * 25, "9819" + "01" * 25),
    ],
)
def test_cbor_as_in_its_rfc(item: object, encoded: str) -> None:
    assert cbor(item).hex() == encoded  # type: ignore[arg-type]


def test_equal_tokens_have_equal_hashes_whatever_the_cache_s_own_hashes_are() -> None:
    found = set()
    for name in HASHES:
        (prefix,) = manager(hash_name=name).prefixes.of(sequence_of([1, 2, 3]))
        found.add(ContentHashes("0").of(prefix))
    assert len(found) == 1
