"""Each vendor's adapter keeps the laws of the model port, over HTTP. (So do the demo and the scripted model.)"""

from __future__ import annotations

import pytest

from perdure.messages import user
from perdure.testing.model_contract import ModelContract
from perdure.testing.scripted import answer, by_prompt, call, cut, fail, hang, say

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCRIPT = by_prompt(
    {
        "population": [answer(say("I look."), call("lookup", {"city": "Berlin"})), say("3.6 million")],
        "fail": fail("quota"),
        "cut": answer(say("Once upon"), cut()),
        "hang": answer(say("Once upon"), hang()),
        "Hello": say("Hi."),
    }
)


class TestVendors(ModelContract):
    deterministic = True  # as its script is

    @pytest.fixture
    async def model(self, wire):
        return await wire.serve(SCRIPT)

    @pytest.fixture(autouse=True)
    def _wire(self, wire):
        self.wire = wire

    def failing_request(self, model):
        return self.wire.request(user("fail"))

    def cut_request(self, model):
        return self.wire.request(user("cut"))

    def hanging_request(self, model):
        return self.wire.request(user("hang"))
