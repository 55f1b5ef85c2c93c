"""Committed state for readers: views that follow each commit, frames of exact deltas, replicas made from these."""

from perdure.views.following import FollowedView, FollowedWatch
from perdure.views.replica import Replica
from perdure.views.watch import View, Watch

__all__ = ["FollowedView", "FollowedWatch", "Replica", "View", "Watch"]
