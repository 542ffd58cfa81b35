"""The one exception type of replays: input that cannot be used at all."""

from __future__ import annotations


class ReplayError(Exception):
    """Input that cannot be used; what is merely incomplete or damaged is a result instead."""

    def __init__(self, subject: str, problem: str, fix: str) -> None:
        """Keep the file or option that is at fault, what is wrong with it, and what to do."""
        self.subject = subject
        self.problem = problem
        self.fix = fix
        super().__init__(f"{subject}: {problem}; {fix}")
