#!/bin/sh
# Makes the virtual environment: finds a Python, installs the locked packages, then perdure itself, editable.
# Needs Python 3.11 or newer and a package index; where a test needs a system package, root installs it and others are told.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-.venv}

say() { printf 'setup: %s\n' "$*" >&2; }

is_suitable() { # a name on PATH may be a shim that runs nothing: only running it tells
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python /usr/bin/python3}; do
        if is_suitable "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    say "no Python 3.11 or newer among: ${PYTHON:-python3, python3.11 to python3.14, python, /usr/bin/python3}."
    say "Install one, or name it: make setup PYTHON=/path/to/python3.12"
    exit 1
}

install_system() { # install_system WHY PACKAGE...
    why=$1
    shift
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $* ($why)"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >&2 </dev/null && return
    fi
    say "lacking: $* ($why). Install it with the system's package manager."
    return 1
}

make_venv() {
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        install_system "python needs it to make a virtual environment" python3-venv
    fi
    say "making $venv with $("$python" --version) ($python)"
    "$python" -m venv --clear "$venv"
}

# What tests run besides Python. A machine without one can still do everything else, so this only tells.
for pair in bash:bash mount:mount unshare:util-linux setpriv:util-linux bwrap:bubblewrap pkill:procps; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || install_system "tests run ${pair%%:*}" "${pair#*:}" || true
done

if ! is_suitable "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
fi

# The build backend is a program that pip looks for on PATH.
PATH="$PWD/$venv/bin:$PATH"
say "installing the locked packages"
"$venv/bin/python" -m pip install --quiet --no-compile --require-hashes --no-deps --requirement requirements/dev.txt
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
"$venv/bin/python" -m pip check --quiet || { say "the lock does not satisfy pyproject.toml: run make lock"; exit 1; }
say "ready"
