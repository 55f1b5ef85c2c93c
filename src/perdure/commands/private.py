"""What is kept is for its owner only, and keys are for this process only, before work goes on (I78)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from pathlib import Path

from perdure.sandboxes.environment import is_secret


def keep_private(store: str) -> str | None:
    """Close the files of a store that was opened to others; what to say of it, if any was open.

    A new store is private from the start; what is not ours stays.
    """
    closed = [str(path) for path in kept_files(store) if _close(path)]
    return f"others could look at {', '.join(closed)}: not any more" if closed else None


def hide_secrets() -> None:
    """Take secrets out of what the system shows of this process's environment; its own code has them as before.

    Commands get an environment without them, but where they share our view of processes they could read ours.
    """
    with contextlib.suppress(OSError, AttributeError):
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        for name in [name for name in os.environ if is_secret(name)]:
            value = os.environ[name]
            begin = getenv(os.fsencode(name))
            if begin and value:
                ctypes.memset(begin, ord("x"), len(os.fsencode(value)))
                os.environ[name] = value  # a new place, for this process and whatever it starts by itself


def kept_files(store: str) -> list[Path]:
    """What belongs to a store in a file, whether it is there or not, and the directory if it is ours by name."""
    path = store.removeprefix("sqlite:").removeprefix("jsonl:").removeprefix("//")
    if store == "memory:" or "://" in store or not path:
        return []
    if store.startswith("jsonl:"):
        return _with_directory(Path(path), [Path(path)])  # nobody passes that directory
    found = [Path(path), Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}.workers")]
    return _with_directory(found[0], found)


def _with_directory(store: Path, found: list[Path]) -> list[Path]:
    return [*found, store.parent] if store.parent.name == ".perdure" else found


def is_open_to_others(path: Path) -> bool:
    """Whether anybody but its owner may do anything with it."""
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
    except OSError:
        return False


def _close(path: Path) -> bool:
    if not is_open_to_others(path):
        return False
    try:
        # By name: opening and closing a database by hand would drop SQLite's locks on it.
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    except OSError:
        return False
    return True
