"""The rule by which a key of a view is judged while its row may change at any moment.

Every store keeps beside a row the version of the change that made it, and remembers deletes with
theirs. So a key that is read twice with the same version has had no change in between; a cache, an
index and a table all say so in the same way. That is all it takes:

1. Read the key in the view: version v, and what is there.
2. Wait until every transaction has ended that may have written to the table by then. A view can
   show a change before other sessions of the source do: a commit is in the log before it is seen,
   and with synchronous replication long before.
3. Read the row in the source, in a snapshot S, and take the end of the log after that, L.
4. Wait until the view says that it has applied everything up to L.
5. Read the key in the view again.

If the version is the same, then what the view has equals what S has, or the view is wrong:

- What made v is seen by S. It was committed before the first read, or the view could not have shown
  it, and its transaction had ended before S was taken. (Of a row that was read from the table, what
  S sees is as new or newer.)
- Nothing that S sees is newer than v and missing for a good reason. It was committed before L, and
  the view has applied all up to L: it would have had another version at the second read.

If the version has changed, the key is in motion, and nothing is known of it. It is looked at again;
one that never holds still is told as moving, never as different, and never as verified.

A key at which view and source are found equal needs none of that. Whatever has happened meanwhile,
the view had for it what the source had at S. So a pass over a view notes the end of the log before
it reads anything, L0, reads both sides once, in any order and as they are, and looks closer only at
the keys that differ. When it ends, each key has been found equal to a state of the source not older
than L0, or wrong, or moving: with none wrong, the view is verified *through* L0. Every change
committed by then had come to what it should come to, except at the keys that move.

The rows of a key are read along the key, so none can slip from a part of the table that is still to
be read into one that has been read.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import orjson

from projections.verification.report import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.changes.sink import Holding

    Document = Mapping[str, object]

HASH_BYTES: Final = 16


def judge(first: Holding, row: Document | None, second: Holding, *, seen: bool = True) -> Verdict:
    """Judges a key; see the module.

    Args:
        first: What the view had before the source was read.
        row: What the source has; None without a row.
        second: What the view had once it had applied all that the source showed.
        seen: Whether step 2 was carried out; else only what is equal is known.
    """
    if first.version != second.version:
        same = _is(first, row) or _is(second, row)
        return Verdict.EQUAL if same else Verdict.MOVING
    if _is(second, row):
        return Verdict.EQUAL
    if not seen:
        return Verdict.MOVING
    if not second.documents:
        return Verdict.MISSING
    if row is None:
        return Verdict.EXTRA
    return Verdict.DUPLICATED if len(second.documents) > 1 else Verdict.DIFFERENT


def hash_of(document: Document) -> bytes:
    """Returns what stands for a row while millions are compared."""
    data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def _is(holding: Holding, row: Document | None) -> bool:
    if row is None:
        return not holding.documents
    return len(holding.documents) == 1 and hash_of(holding.documents[0]) == hash_of(row)
