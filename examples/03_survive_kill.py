"""Kill the agent with SIGKILL inside its payment; the next start settles what was accepted and pays nobody twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import perdure

LEDGER = Path("ledger.txt")


@perdure.tool
def pay(amount: int, to: str) -> str:
    """Pay someone an amount.

    Args:
        amount: Whole euros.
        to: Who gets it.
    """
    with LEDGER.open("a") as file:
        file.write(f"{amount} {to}\n")
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)  # after the money is gone, before anyone recorded it
    return "paid"


async def agent() -> None:
    registry = perdure.Registry([perdure.Extension(name="shop", tools=[pay])])
    async with perdure.open("till.db", model="demo", registry=registry) as session:
        till = await session.conversation("till")
        sent = await till.submit('Pay 5 to "Ann"', request_id="order-17")
        print("settled:", await sent.wait())
        async for entry in till.history():
            print(entry.id, entry.kind, *entry.messages)


def main() -> None:
    if sys.argv[1:] == ["agent"]:
        perdure.run(agent)
        return
    first = subprocess.run([sys.executable, __file__, "agent"], env={**os.environ, "DIE": "1"}, check=False)
    assert first.returncode == -signal.SIGKILL
    second = subprocess.run([sys.executable, __file__, "agent"], capture_output=True, text=True, check=True)
    print(second.stdout)
    assert LEDGER.read_text() == "5 Ann\n"  # once, although the request was handed in twice
    assert "interrupted" in second.stdout  # and the model was told that nobody knows the outcome


main()
