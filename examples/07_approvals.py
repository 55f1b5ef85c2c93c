"""A call waits for a person, across a restart, and runs with what the person made of it."""

import perdure


@perdure.tool
async def pay(amount: int, to: str) -> str:
    """Pay an amount to someone."""
    return f"paid {amount} to {to}"


async def ask_about_payments(call: perdure.CallToJudge) -> perdure.Ask | None:
    if call.name == "pay" and "pay" not in call.allowed:
        return perdure.Ask(f"Pay {call.arguments['to']}?", deadline=3600, remember=("pay",))
    return None


SHOP = perdure.Registry([perdure.Extension(name="shop", tools=[pay], before_tool=[ask_about_payments])])


async def main() -> None:
    async with perdure.open("shop.db", model="demo", registry=SHOP) as session:
        till = await session.conversation("till")
        sent = await till.submit("Pay 5 to Ann")
        await session.until(lambda: bool(session.inspect().questions))
        print(await sent.status())

    async with perdure.open("shop.db", model="demo", registry=SHOP) as session:  # after a restart
        till = await session.conversation("till")
        for question in await till.questions():
            print(question.payload, question.call.arguments)
            await question.answer(perdure.Edit({"amount": 3, "to": "Ann"}), by="ben")
        print((await session.submission(sent.id).wait()).text)


perdure.run(main)
