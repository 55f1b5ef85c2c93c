"""The verifier: it reads the raw database and the files, and believes nobody.

`python -m perdure.commands.demo.verify DIR` is a process of its own with SQL of its own: none of the code that reads
and writes sessions is used here. What is wrong goes to standard error, a line each; then comes one line of JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from perdure.commands.demo.places import places
from perdure.commands.demo.rows import Unreadable, read_rows
from perdure.commands.demo.verdict import Verdict, judge


def verify(arguments: Sequence[str]) -> int:
    """The exit code: 0 all is well, 1 something is wrong, 2 there is nothing to judge by."""
    parser = argparse.ArgumentParser(prog="python -m perdure.commands.demo.verify", description="Verify a kept demo.")
    parser.add_argument("directory", help="what was given to --keep")
    parser.add_argument("--store", help="what was given to --store")
    given = parser.parse_args(arguments)
    try:
        verdict = judge(read_rows(places(given.directory, given.store)))
    except Unreadable as error:
        print(f"perdure: {error}", file=sys.stderr)
        return 2
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        print(f"perdure: the records make no sense: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for problem in verdict.problems:
        print(f"perdure: {problem}", file=sys.stderr)
    print(msgspec.json.encode(verdict).decode())
    return 0 if verdict.good else 1


def read_verdict(line: str) -> Verdict:
    """The verdict of a verifier that ran elsewhere."""
    return msgspec.json.decode(line, type=Verdict)


if __name__ == "__main__":
    sys.exit(verify(sys.argv[1:]))
