"""Starts a training run and kills it in the middle: kill.py DIRECTORY COMMAND...

It is killed by SIGKILL once its first checkpoint is there. Fails if it ends before.
"""

import subprocess
import sys
import time
from pathlib import Path

directory, *command = sys.argv[1:]
run = subprocess.Popen([*command, "--output", directory])
while run.poll() is None:
    time.sleep(0.05)
    if any(p.name.isdigit() for p in Path(directory).glob("checkpoints/*")):
        run.kill()
        run.wait()
        sys.exit(0)
sys.exit(f"{' '.join(command)} ended with {run.returncode} before it was killed")
