"""A whole session under a seeded loop: users, model, tools, faults, crashes and takeovers, with the invariants
checked as it runs.

`python -m perdure.testing.simulation --seeds 200`, or `--seed 7` to replay one.
"""

from perdure.testing.simulation.world import Result, Violation, simulate

__all__ = ["Result", "Violation", "simulate"]
