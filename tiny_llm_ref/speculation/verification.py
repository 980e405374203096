"""Decide where a step with drafts samples, and which of its samples become part of the answers."""

from collections.abc import Sequence as Items

import numpy as np

from ..paging.paged_kv_cache import Ints
from ..scheduling.scheduler_output import ScheduledTokens


def rows_to_verify(entries: Items[ScheduledTokens], query_start_loc: Ints) -> Ints:
    """Find the rows after which a token is sampled: a final entry's last own token, and each of its drafts.

    Args:
        entries: of the step, with drafts.
        query_start_loc: [N + 1]; the tokens of entry i, drafts included, are rows query_start_loc[i] to
            query_start_loc[i + 1] - 1.

    Returns:
        [R], in the order of the entries; a final entry with k drafts has k + 1 rows.
    """
    rows = [
        np.arange(end - 1 - len(entry.draft_ids), end, dtype=np.int32)
        for entry, end in zip(entries, query_start_loc[1:], strict=True)
        if entry.is_final
    ]
    return np.concatenate([np.empty(0, np.int32), *rows])


def rows_to_keep(final: Items[ScheduledTokens], is_accepted: Items[bool]) -> dict[int, range]:
    """Find the samples that each answer gets: its drafts up to the first rejected one, and one token more.

    The sample of an accepted draft's row is the draft. The sample after the last accepted draft is the
    model's own: it takes the place of the first rejected draft, or follows them all.

    Args:
        final: the step's final entries, with drafts.
        is_accepted: R values, in the order of `rows_to_verify`. Row i of an entry says whether the sample in
            that row accepts draft i of the entry; its last row has no draft.

    Returns:
        Which of the R samples, by sequence id; at least one each.
    """
    rows, start = {}, 0
    for entry in final:
        end = start
        while end - start < len(entry.draft_ids) and is_accepted[end]:
            end += 1
        rows[entry.sequence.id] = range(start, end + 1)
        start += len(entry.draft_ids) + 1
    return rows
