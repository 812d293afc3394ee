"""Files that are whole or not there.

_container    what is saved: one safetensors file of named parts, with hashes
_fields       values of such a file, checked as they are read
_atomic       writing next to the place, and renaming
_lock         a lock that the system takes from a killed process
_hashing      hashes of files, of tensors and of values
_json         JSON within limits
"""

from laplace_metric.io._atomic import (
    named_errors,
    only_regular,
    refuse_link,
    remove_abandoned,
    require_writable,
    sync_file,
    sync_folder,
    write_atomically,
    writing,
)
from laplace_metric.io._container import MALFORMED, Kind, Part, SavedFile, read, write
from laplace_metric.io._fields import Fields, checked_array
from laplace_metric.io._hashing import content_digest, digest, sha256_of
from laplace_metric.io._json import difference, json_text
from laplace_metric.io._lock import locked

__all__ = [
    "MALFORMED",
    "Fields",
    "Kind",
    "Part",
    "SavedFile",
    "checked_array",
    "content_digest",
    "difference",
    "digest",
    "json_text",
    "locked",
    "named_errors",
    "only_regular",
    "read",
    "refuse_link",
    "remove_abandoned",
    "require_writable",
    "sha256_of",
    "sync_file",
    "sync_folder",
    "write",
    "write_atomically",
    "writing",
]
