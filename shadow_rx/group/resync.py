"""When a shadow asks its trainer for a state to go on from: bounded retries, counted in steps, not in seconds."""

from __future__ import annotations

_MOST_DOUBLINGS = 6
"""The distance between two states that did not help ends at 64 steps."""
KEPT_RECORDS = 64
"""Steps before the window whose records are kept while a state is awaited: it is published with the ranks' records."""


class StateRequests:
    """Says from which step on the next uploaded state may be.

    A state costs the network a whole model. So a state from which not one step could be replayed doubles the distance
    to the next one; a step that was replayed sets it back to one. The shadow goes on asking for ever.
    """

    def __init__(self) -> None:
        """Let any step do for the first state."""
        self._in_vain = 0
        self.earliest = 0
        """Earliest step of the next state."""

    def adopted(self, step: int) -> None:
        """Note that the state after `step` was taken."""
        self.earliest = step + (1 << min(self._in_vain, _MOST_DOUBLINGS))
        self._in_vain += 1

    def progressed(self) -> None:
        """Note that a step was replayed."""
        self._in_vain = 0
        self.earliest = 0
