"""What every command that trains needs: an orderly end when it is stopped."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from fedjax_muon.runs.directory import held, resume_command
from fedjax_muon.runs.errors import logged, refusing

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C; preemption


@contextlib.contextmanager
def resumable(run_dir: Path, again: str = "") -> Iterator[Callable[[], bool]]:
    """Holds a run directory, and ends with the command to resume if it is interrupted.

    A second Ctrl-C, or SIGTERM, stops at once.

    Args:
      again: The command to continue with; by default `fedjax-muon resume`.

    Yields:
      A function that tells whether an interrupt has come, to be asked between rounds:
      anywhere else it could be lost in a library's callback. Whoever asks saves what is
      needed, and raises `KeyboardInterrupt`.
    """
    pressed = threading.Event()

    def press(number, frame):
        del number, frame
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    holding = contextlib.ExitStack()
    with refusing():
        holding.enter_context(held(run_dir))
    previous = {number: signal.signal(number, press) for number in SIGNALS}
    try:
        with holding, logged(run_dir):
            yield pressed.is_set
    except KeyboardInterrupt:
        again = again or resume_command(run_dir)
        print(f"\ninterrupted; continue with: {again}")
        sys.exit(130)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
