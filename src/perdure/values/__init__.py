"""JSON as perdure keeps it: checked, cleaned and copied once, where it enters (K18, I60, I61).

Two doors lead in. `clean` is strict and for what a program stores on purpose: what it takes comes back equal, in this
process and in the next. `coerce` is for what tools return: it writes common Python values down as JSON by fixed rules.
Both refuse the rest with `InvalidValue`, which names the place (`/items/3/price`) and the remedy.
`parse_object` reads the JSON that a model wrote.

Text (I57, I58): PostgreSQL does not take U+0000, and a lone surrogate does not encode at all. Each U+0000 becomes
U+2400 (the picture of a NUL), each lone surrogate U+FFFD, a surrogate pair the character it means; in keys as well.
An escape that is spelled out, such as the six characters backslash-u0000, is ordinary text and stays.

Numbers: integers from -2**63 to 2**64 - 1, which every codec here returns as they were, and finite floats.
"""

from perdure.values.coercion import coerce
from perdure.values.parsing import parse_object
from perdure.values.strict import (
    JSON,
    MAX_DEPTH,
    JsonProxy,
    canonical,
    clean,
    clean_key,
    clean_text,
    digest,
    encode,
    escape,
)

__all__ = [
    "JSON",
    "MAX_DEPTH",
    "JsonProxy",
    "canonical",
    "clean",
    "clean_key",
    "clean_text",
    "coerce",
    "digest",
    "encode",
    "escape",
    "parse_object",
]
