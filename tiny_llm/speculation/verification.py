"""Decide where a step with drafts samples, and which of its samples become part of the answers."""

from collections.abc import Sequence as Items

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
    raise NotImplementedError("week 3 day 6 task 4: rows_to_verify is not written yet")


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
    raise NotImplementedError("week 3 day 6 task 4: rows_to_keep is not written yet")
