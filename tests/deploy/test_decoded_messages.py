"""Decoding at the server changes no bits.

In a process of its own: with the settings of this suite, XLA rounds a decoding
differently where it is compiled together with local training.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("decoded_messages.py")


def test_private_messages_have_the_bits_of_the_simulation():
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    cases = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())
    # difference, missing answers
    assert cases == dict.fromkeys(("quantized", "adaptive"), "0.0 0")
