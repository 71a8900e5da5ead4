from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from cdc.broker.producing.record_batch import RecordBatch, varint

_keys = st.one_of(st.none(), st.binary(max_size=200))
_values = st.binary(max_size=40_000)


@given(
    records=st.lists(st.tuples(_keys, _values), min_size=1, max_size=300),
    headers=st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=200)), max_size=3),
)
def test_the_library_reads_the_records_that_were_packed(
    records: list[tuple[bytes | None, bytes]], headers: list[tuple[str, bytes]]
) -> None:
    batch = RecordBatch(headers)
    for key, value in records:
        batch.add(key, value)

    packed = batch.take()

    read = MemoryRecords(packed).next_batch()
    assert read is not None
    assert read.validate_crc()
    found = list(read)
    assert records == [(record.key, record.value) for record in found]
    assert list(range(len(records))) == [record.offset for record in found]
    assert all(headers == list(record.headers) for record in found)
    assert (0, 0) == (batch.count, batch.size_bytes)


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_number_is_written_as_the_library_reads_it(number: int) -> None:
    from kafka.record.util import decode_varint

    encoded = varint(number)

    assert (number, len(encoded)) == decode_varint(bytearray(encoded))
