"""What a request used and cost, in disjoint buckets; what a provider did not report is unknown (H17, I47)."""

from __future__ import annotations

from genai_prices import calc_price
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from perdure.model import Usage
from perdure.providers.vendors import Target

#: Vendors whose own models have a price, by the prefix of names.
_PRICED = {"openai": "openai", "openai-chat": "openai", "anthropic": "anthropic", "google": "google"}


def usage_of(stream: StreamedResponse, target: Target) -> Usage | None:
    """The usage of a stream that ended; None when nothing is known of it."""
    found = stream.usage
    if (
        found.unmeasured_requests or not found.input_tokens
    ):  # a request without any input is a server that counts nothing
        return None
    cost = _cost(found, stream, target)
    # A vendor's own API reports each bucket, so its zero is one. Other servers leave buckets out, which reads the same.
    reports = target.url is None or cost is not None
    read = _known(found.cache_read_tokens, reports or "cache_read_input_tokens" in found.details)
    write = _known(found.cache_write_tokens, reports or "cache_creation_input_tokens" in found.details)
    # Anthropic counts reasoning as output, and says how much it was for some models only.
    told = "reasoning_tokens" in found.details or "thinking_tokens" in found.details
    reasoning = _known(found.output_reasoning_tokens, told or (reports and target.api != "anthropic"))
    return Usage(
        input=_without(found.input_tokens, (read or 0) + (write or 0)),
        cache_read=read,
        cache_write=write,
        output=_without(found.output_tokens, reasoning or 0),
        reasoning=reasoning,
        cost=cost,
    )


def _known(count: int, reported: bool) -> int | None:
    return count if count or reported else None


def _without(total: int, part: int) -> int:
    """The rest of a total. A server whose part is larger than its total counted them apart already."""
    return total - part if part <= total else total


def _cost(usage: RequestUsage, stream: StreamedResponse, target: Target) -> float | None:
    """By the price list of the vendor; unknown for every other server, and for models that the list has not."""
    vendor = _PRICED.get(target.vendor)
    if vendor is None:
        return None
    for model in (stream.model_name, target.model):
        try:
            price = calc_price(
                usage,
                model,
                provider_id=vendor,
                genai_request_timestamp=stream.timestamp,
                price_context=stream.provider_details,
            )
        except (LookupError, ValueError):
            continue
        return float(price.total_price)
    return None
