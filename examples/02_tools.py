"""Tools from plain functions: the demo model reads their schemas and calls them. One is safe to repeat, one never
is."""

import perdure

POPULATION = {"Lisbon": "545,000", "Oslo": "709,000"}
PAID: list[tuple[int, str]] = []


@perdure.tool(replay="safe")  # may run again after an interruption
async def lookup(city: str) -> str:
    """Population of a city.

    Args:
        city: English name of the city.
    """
    return POPULATION.get(city, "unknown")


@perdure.tool  # the default: never repeated behind your back
async def pay(call: perdure.ToolCall, amount: int, to: str) -> str:
    """Pay someone an amount.

    Args:
        amount: Whole euros.
        to: Who gets it.
    """
    call.output(f"paying {to}\n")  # shown while it runs, and kept if the process dies here
    PAID.append((amount, to))
    return f"paid {amount} to {to} under key {call.idempotency_key}"


async def main() -> None:
    registry = perdure.Registry([perdure.Extension(name="shop", tools=[lookup, pay])])
    async with perdure.open("shop.db", model="demo", registry=registry) as session:
        till = await session.conversation("till-1")
        sent = await till.submit('Pay 5 to "Ann"', request_id="order-17")
        done = await sent.wait()
        assert isinstance(done, perdure.Answered)
        print(done.text)
        print(PAID)
        print(await till.usage())


perdure.run(main)
