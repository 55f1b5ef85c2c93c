"""Which strategies work here. Whatever forbids one (a kernel, a container, a policy) shows only when it is tried."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys

import msgspec

from perdure.errors import SandboxError, UsageError
from perdure.sandboxes.strategies import NAMES, STRATEGIES, Strategy, argv, named

#: Forces one strategy.
VARIABLE = "PERDURE_BASH_ISOLATION"
#: What the probe's command exits with, which nothing else on its way does; seconds that it may take.
CODE = 7
PATIENCE = 10.0
#: So much of what a failing probe said is told, in characters.
MOST_TOLD = 300

#: The kernel's own switch of Ubuntu since 23.10, and what its refusal looks like.
APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_REFUSED_BY_APPARMOR = ("uid_map", "uid map", "RTM_NEWADDR")
_PROFILE = """\
AppArmor forbids user namespaces here. As root, this allows them to {program} (and so to whoever runs it):
  cat > /etc/apparmor.d/perdure-{name} <<'END'
  abi <abi/4.0>,
  include <tunables/global>
  profile perdure-{name} {program} flags=(unconfined) {{
    userns,
  }}
  END
  apparmor_parser -r /etc/apparmor.d/perdure-{name}"""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What trying a strategy showed. `reason` says why it does not work, in the words of what refused."""

    strategy: Strategy
    works: bool
    reason: str = ""
    hint: str = ""  #: what would make it work
    wrapper: tuple[str, ...] = ()


def probe() -> list[Finding]:
    """Try every strategy, in order of preference. Blocks: some hundredths of a second in all."""
    return [try_out(each) for each in STRATEGIES]


def try_out(strategy: Strategy) -> Finding:
    """Run a command that exits with 7. Blocks."""
    if sys.platform != "linux" and strategy.kind != "group":
        return Finding(strategy=strategy, works=False, reason="it needs Linux")
    try:
        wrapper = strategy.wrapper()
    except LookupError as error:
        return Finding(strategy=strategy, works=False, reason=str(error))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"go\n")  # the answer to a question that is not waited for
        try:
            ran = subprocess.run(
                argv(_checked(strategy, wrapper), f"exit {CODE}"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=PATIENCE,
                start_new_session=True,
                check=False,
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Finding(strategy=strategy, works=False, reason=str(error)[:MOST_TOLD])
    if ran.returncode == CODE:
        return Finding(strategy=strategy, works=True, wrapper=wrapper)
    said = " ".join(ran.stderr.decode(errors="replace").split())[:MOST_TOLD]
    reason = f"{said or 'it said nothing'} (exit code {ran.returncode})"
    return Finding(strategy=strategy, works=False, reason=reason, hint=hint(said, wrapper) if _restricted() else "")


def _checked(strategy: Strategy, wrapper: tuple[str, ...]) -> tuple[str, ...]:
    """The wrapper of a namespace looks whether it is in one: what only claims to make one must not be believed."""
    if strategy.kind != "namespace":
        return wrapper
    *before, init, name = wrapper
    return (*before, f'[ "$$" = 1 ] || {{ echo "this is no new pid namespace" >&2; exit 3; }}{init}', name)


def _restricted() -> bool:
    """Whether AppArmor decides about user namespaces here."""
    try:
        with open(APPARMOR, "rb") as file:
            return file.read().strip() == b"1"
    except OSError:
        return False


def hint(said: str, wrapper: tuple[str, ...]) -> str:
    """Where AppArmor decides: the profile that would allow what it refused; empty when something else did."""
    if not any(sign in said for sign in _REFUSED_BY_APPARMOR):
        return ""
    program = next(each for each in wrapper if os.path.basename(each) in ("unshare", "bwrap"))
    return _PROFILE.format(program=program, name=os.path.basename(program))


def check_name(forced: str) -> None:
    """Raise UsageError where there is no such strategy."""
    if named(forced) is None:
        raise UsageError(f"{VARIABLE}={forced}: there is no such isolation: use one of {', '.join(NAMES)}")


@functools.cache
def chosen(forced: str | None) -> Finding:
    """The first strategy that works, or the forced one. Found once for each process. Blocks.

    Raises SandboxError when the forced one does not work: it is never replaced by a weaker one without a word.
    """
    if forced is not None:
        check_name(forced)
    candidates = [each for each in STRATEGIES if forced in (None, each.name)]
    failed: list[str] = []
    for each in candidates:
        finding = try_out(each)
        if finding.works:
            return finding
        failed.append(f"{each.name}: {finding.reason}")
    if forced is not None:
        raise SandboxError(
            f"commands cannot be run: isolation {forced} is asked for ({VARIABLE}), and does not work here: "
            f"{failed[0].partition(': ')[2]}. Ask for another one, or for none: then the best that works is taken"
        )
    raise SandboxError(f"commands cannot be run: no isolation works here: {'; '.join(failed)}")
