"""Changes of JSON values: operations, and drafts that record them (K18, K19).

An operation is a plain JSON object. Six are those of JSON Patch (RFC 6902); paths are JSON pointers (RFC 6901):

- `{"op": "add", "path", "value"}`: a new member, or an item before an index (`-`: after the last)
- `{"op": "remove", "path"}` and `{"op": "replace", "path", "value"}`: something must stand there
- `{"op": "move", "from", "path"}` and `{"op": "copy", "from", "path"}`

Two are perdure's own, because text that grows and windows that slide are what agents write all day:

- `{"op": "append", "path", "value"}`: text at the end of the text that stands there
- `{"op": "truncate", "path", "keep"}`: only the last `keep` items of a list, or characters of a text

`as_json_patch` says the same in RFC 6902 alone. `test` is not used: storage is fenced, nobody else writes.
"""

from perdure.deltas.drafts import Draft, DraftList, DraftObject
from perdure.deltas.operations import Op, apply, as_json_patch
from perdure.deltas.parts import plain

__all__ = ["Draft", "DraftList", "DraftObject", "Op", "apply", "as_json_patch", "plain"]
