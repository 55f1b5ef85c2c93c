"""Changes of a document by chance: each is one thing that a draft of an object or a list can do."""

from __future__ import annotations

from typing import Any


def part_of(root: Any, path: list[int]) -> Any:
    """A container inside a draft: as far down as the path leads."""
    at = root
    for index in path:
        members = [at[key] for key in at] if hasattr(at, "keys") else list(at)
        inner = [each for each in members if hasattr(each, "__len__") and not isinstance(each, str)]
        if not inner:
            break
        at = inner[index % len(inner)]
    return at


def change(root: Any, op: str, path: list[int], i: int, j: int, value: Any) -> None:
    """One change of a draft: of an object or a list, by whatever it is called there."""
    part = part_of(root, path)
    if hasattr(part, "keys"):
        key, other = "abcd"[i], "abcd"[j]
        match op:
            case "delete" | "truncate":
                del part[key]
            case "move":
                part[other] = part.pop(key)
            case "alias":
                part[other] = part[key]
            case "text":
                part.append_text(key, "more")
            case "nest":
                part[key] = {"a": [value], "b": {}}
            case _:
                part[key] = value
        return
    match op:
        case "delete":
            del part[i]
        case "slice":
            part[i : i + j] = [value, value]
        case "move":
            part.insert(j, part.pop(i))
        case "alias":
            part.append(part[i])
        case "text":
            part.append_text(i, "more")
        case "truncate":
            part.truncate(j)
        case "reverse":
            part.reverse()
        case "set":
            part[i] = value
        case "insert":
            part.insert(i, value)
        case _:
            part.append([value] if op == "nest" else value)
