"""What subscribers of KV events get if they ask for those that they have missed."""

import pytest

from http_server.kv_event_log import EventBatch, EventLog
from tiny_llm.scheduling.cache_events import BlockStored, CacheContents

BATCHES = [EventBatch(number, 0.0, [BlockStored(number, None, (number,))]) for number in range(5)]


@pytest.mark.parametrize("most", [0, 2, 5, 9])
@pytest.mark.parametrize("number", range(6))
def test_whoever_asks_for_what_is_missing_ends_with_everything(number: int, most: int) -> None:
    log, contents = EventLog(most), CacheContents()
    for batch in BATCHES:
        log.add(batch)
        if batch.number < number:
            contents.apply(batch.events)
    asked = log.since(number)
    for batch in asked:
        contents.apply(batch.events)
    assert contents.blocks.keys() == {batch.number for batch in BATCHES}
    assert [batch.number for batch in asked] == list(range(max(number, 4 - most), 5))
