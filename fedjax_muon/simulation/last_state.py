"""A private simulation trains only from the last state that it returned, and once.

Every call draws new noise, which is not part of the state. Training twice from the same
state would therefore release two results, but the guarantee covers only one. A state is
recognized by the identity of its arrays. A copy, an edited state, and a state of
another simulation or process have other arrays, and are refused.
"""

import os
import threading
import weakref
from typing import Any

import jax


class LastState:
    """Remembers the arrays of a state, and keeps none of them in memory."""

    def __init__(self) -> None:
        self._forget()
        self._forgets = False

    def _forget(self) -> None:
        self._arrays: list[weakref.ref[Any]] | None = None
        self._process = -1
        self._lock = threading.Lock()  # another thread may have held the one before

    def keep(self, state: Any) -> None:
        """Remembers a state in place of the one before."""
        if not self._forgets:
            # a child may have the number of its process again, in another namespace
            forget = weakref.WeakMethod(self._forget)
            if hasattr(os, "register_at_fork"):  # else nothing forks
                os.register_at_fork(after_in_child=lambda: (forget() or tuple)())
            self._forgets = True
        with self._lock:
            self._arrays = list(map(weakref.ref, jax.tree.leaves(state)))
            self._process = os.getpid()

    def take(self, state: Any) -> None:
        """Forgets a state, so that it is used once; raises if it is another one."""
        with self._lock:
            if not self._holds(jax.tree.leaves(state)):
                raise ValueError(
                    "a private simulation trains only from the state that it made "
                    "last, once, since its guarantee covers one release of every "
                    "round; got another state, or a copy; begin a new run, whose cost "
                    "adds, with init(key, params=...), or continue a run "
                    "directory with the same call"
                )
            self._arrays = None

    def _holds(self, leaves: list[Any]) -> bool:
        if self._arrays is None or self._process != os.getpid():
            return False
        return len(leaves) == len(self._arrays) and all(
            kept() is leaf for kept, leaf in zip(self._arrays, leaves, strict=True)
        )
