#!/bin/sh
# Writes the three locks from pyproject.toml. Universal: one file holds for every platform and every Python that the package supports.
# No index line and no host name goes into them: where packages come from is the machine's own business.
set -eu
cd "$(dirname "$0")/.."
python=${1:?usage: lock.sh PYTHON [--upgrade]}
shift

lock() {
    output=$1
    shift
    "$python" -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-config --output-file "$output" "$@"
}

lock requirements/runtime.txt pyproject.toml "$@"
lock requirements/dev.txt pyproject.toml --all-extras --group dev --constraint requirements/runtime.txt "$@"
lock requirements/lock.txt --group lock "$@"
