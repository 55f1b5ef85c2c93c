"""The façade: puts storage, engine, model and sandbox together."""

from perdure.app.opening import Store, open, run, store
from perdure.app.session import Session

__all__ = ["Session", "Store", "open", "run", "store"]
