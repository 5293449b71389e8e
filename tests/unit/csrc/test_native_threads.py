"""The pool of threads: callers that compete for it, and a fork."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

pytest.importorskip("outrider._native")

from outrider import native as door
from outrider.machine import usable_processors

native = door.library


def test_callers_that_compete_get_the_bits_of_one_thread() -> None:
    draw = np.random.default_rng(0)
    weights = native.pack_float(draw.standard_normal((500, 96), dtype=np.float32), "q8_0")
    inputs = [draw.standard_normal((rows, 96), dtype=np.float32) for rows in (1, 2, 7, 19)]
    native.set_num_threads(1)
    expected = [native.linear(x, [weights])[0] for x in inputs]
    wrong: list[tuple[int, int]] = []

    def call(seed: int) -> None:
        for i in range(100):
            which = (i + seed) % len(inputs)
            native.set_num_threads(1 + (i + seed) % 6)
            if not np.array_equal(native.linear(inputs[which], [weights])[0], expected[which]):
                wrong.append((seed, i))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads, which is the point
def test_a_forked_process_makes_threads_of_its_own() -> None:
    native.set_num_threads(3)
    weights = native.pack_float(np.ones((320, 32), dtype=np.float32), "f32")
    x = np.ones((4, 32), dtype=np.float32)
    assert (native.linear(x, [weights])[0] == 32).all()
    child = os.fork()
    if child == 0:
        right = bool((native.linear(x, [weights])[0] == 32).all())
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (native.linear(x, [weights])[0] == 32).all()


def test_the_default_is_what_the_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, as a number set in this one stays set."""
    import subprocess
    import sys

    monkeypatch.delenv("OUTRIDER_NUM_THREADS", raising=False)
    program = "from outrider import native; print(native.library.num_threads())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(found.stdout) == usable_processors()
    assert door.library is native
