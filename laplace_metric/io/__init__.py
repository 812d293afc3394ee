"""Files that are whole or not there, and the hashes that tell one content from another.

A saved value is a folder with a JSON, such as ``posterior.json``, and the safetensors that it
names. The tensors are written first, under a name that holds their hash; replacing the JSON is the
one atomic step that makes them current. A reader sees the old value or the new one, never a mix.

Writers take turns, by a lock. Each works in a hidden folder that also lists the files it makes and
replaces, so that the next writer can remove what a killed one left behind, and nothing else.
Readers write nothing. Links are not followed where something is cleaned, finished or locked. The
JSON holds its own hash: a flipped digit is noticed.
"""

from laplace_metric.io._disk import (
    INDEX,
    POSTERIOR,
    SEAL,
    FileKind,
    digest,
    locked,
    named_errors,
    only_regular,
    refuse_link,
    sealed,
    sha256_of,
    sync_file,
    sync_folder,
)
from laplace_metric.io._hidden import (
    exists,
    json_text,
    require_writable,
    tidy,
    write_atomically,
    writing,
)
from laplace_metric.io._read import (
    MALFORMED,
    difference,
    read,
    read_index,
    settled,
)
from laplace_metric.io._write import together, write

__all__ = [
    "INDEX",
    "MALFORMED",
    "POSTERIOR",
    "SEAL",
    "FileKind",
    "difference",
    "digest",
    "exists",
    "json_text",
    "locked",
    "named_errors",
    "only_regular",
    "read",
    "read_index",
    "refuse_link",
    "require_writable",
    "sealed",
    "settled",
    "sha256_of",
    "sync_file",
    "sync_folder",
    "tidy",
    "together",
    "write",
    "write_atomically",
    "writing",
]
