"""Threads that make the decoder of one class at the same time: msgspec alone ends the process."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 150
"""Where decoders are made without a lock, 300 rounds ended the process in each of three runs."""

PROGRAM = f"""
import sys, threading
import msgspec
from eventstore.serialization.wire import decoder

sys.setswitchinterval(1e-6)
fields = [(f"f{{n}}", dict[str, int] | None) for n in range(12)]
data = msgspec.json.encode({{name: {{"a": 1}} for name, _ in fields}} | {{"inner": {{"n": 1}}}})
read = []
for _ in range({ROUNDS}):
    inner = msgspec.defstruct("Inner", [("n", int)])
    kind = msgspec.defstruct("Kind", [*fields, ("inner", inner)])
    together = threading.Barrier(3)

    def one():
        together.wait()
        read.append(decoder("kind", kind)(data).inner.n)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(sum(read))
"""


def test_threads_make_the_decoder_of_a_class_together() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )

    assert (ran.returncode, ran.stdout.strip()) == (0, str(3 * ROUNDS)), ran.stderr
