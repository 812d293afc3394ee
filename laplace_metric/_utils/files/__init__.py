"""Files that are whole or not there, and the hashes that tell one content from another.

A saved value is a folder with a JSON, such as ``posterior.json``, and the safetensors that it
names. The tensors are written first, under a name that holds their hash; replacing the JSON is the
one atomic step that makes them current. A reader sees the old value or the new one, never a mix.
A value may have one more file of a foreign format (that of a search engine).

Writers take turns, by a lock. Each works in a hidden folder that also lists the files it makes and
replaces, so that the next writer can remove what a killed one left behind, and nothing else.
Readers write nothing. Links are not followed where something is cleaned, finished or locked. The
JSON holds its own hash: a flipped digit is noticed.
"""

from laplace_metric._utils.files._current import exists
from laplace_metric._utils.files._disk import named_errors, only_regular, refuse_link, sync_folder
from laplace_metric._utils.files._hashes import SEAL, digest, sealed, sha256_of
from laplace_metric._utils.files._hidden import JOURNAL, left_behind, remove_hidden, tidy
from laplace_metric._utils.files._kinds import INDEX, POSTERIOR, FileKind
from laplace_metric._utils.files._locks import locked
from laplace_metric._utils.files._read import MALFORMED, foreign_file, read, read_index
from laplace_metric._utils.files._settled import settled, settled_together
from laplace_metric._utils.files._single import (
    json_text,
    require_writable,
    write_atomically,
    writing,
)
from laplace_metric._utils.files._together import together
from laplace_metric._utils.files._write import write

__all__ = [
    "INDEX",
    "JOURNAL",
    "MALFORMED",
    "POSTERIOR",
    "SEAL",
    "FileKind",
    "digest",
    "exists",
    "foreign_file",
    "json_text",
    "left_behind",
    "locked",
    "named_errors",
    "only_regular",
    "read",
    "read_index",
    "refuse_link",
    "remove_hidden",
    "require_writable",
    "sealed",
    "settled",
    "settled_together",
    "sha256_of",
    "sync_folder",
    "tidy",
    "together",
    "write",
    "write_atomically",
    "writing",
]
