"""A child for the crash tests: numbered rows, one transaction each, acknowledged on standard output.

workload.py DATABASE SYNCHRONOUS ROWS
"""

import sys

import apsw

from perdure.telemetry import Telemetry
from perdure.testing.crash import install_from_environment


def main(path: str, synchronous: str, rows: int) -> None:
    telemetry = Telemetry()
    vfs = install_from_environment(telemetry)
    connection = apsw.Connection(path, vfs=vfs)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", 12)
    connection.execute("create table if not exists row (n integer primary key, body blob) strict")
    for n in range(1, rows + 1):
        connection.execute("insert into row values (?, randomblob(700))", (n,))
        print("ack", n, flush=True)  # noqa: T201
        telemetry.emit("workload.acknowledged", {"n": n})
        if n == rows // 2:
            connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
