"""A filter as containers have by default: this process and all below it may make no namespace. Linux only."""

from __future__ import annotations

import ctypes
import platform
import struct

#: Numbers of the calls, and of the architecture, by machine.
CALLS = {
    "x86_64": (0xC000003E, {"unshare": 272, "setns": 308, "mount": 165, "clone": 56, "clone3": 435}),
    "aarch64": (0xC00000B7, {"unshare": 97, "setns": 268, "mount": 40, "clone": 220, "clone3": 435}),
}
NEW_NAMESPACES = 0x7E020000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = 1, 38


def available() -> bool:
    return platform.machine() in CALLS


def forbid_namespaces() -> None:
    """For good, and for everything that is started from here."""
    program = ctypes.create_string_buffer(_program())
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("HP", len(program.raw) // 8, ctypes.addressof(program))
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def _program() -> bytes:
    """Offsets of what a filter sees: 0 the call, 4 the architecture, 16 the low half of the first argument."""
    architecture, calls = CALLS[platform.machine()]
    code = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, 0),
    ]
    for name, error in (("unshare", EPERM), ("setns", EPERM), ("mount", EPERM), ("clone3", ENOSYS)):
        code += [(EQUAL, 0, 1, calls[name]), (RETURN, 0, 0, REFUSE | error)]
    code += [
        (EQUAL, 0, 3, calls["clone"]),
        (LOAD, 0, 0, 16),
        (ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, REFUSE | EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *each) for each in code)
