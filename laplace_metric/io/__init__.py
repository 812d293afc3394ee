"""Files that are whole or not there.

_container    what is saved: one safetensors file of named parts, with hashes
_fields       values of such a file, checked as they are read
_record       a dataclass as such values, by the types of its fields
_atomic       writing next to the place, and renaming
_lock         a lock that the system takes from a killed process
_hashing      hashes of files and of tensors
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
from laplace_metric.io._fields import BELOW_ONE, POSITIVE, UNIT, WHOLE, Fields, checked_array
from laplace_metric.io._hashing import digest, sha256_of
from laplace_metric.io._json import difference, json_text
from laplace_metric.io._lock import locked
from laplace_metric.io._record import below, record, record_digest, restored, saved, unsaved

__all__ = [
    "BELOW_ONE",
    "MALFORMED",
    "POSITIVE",
    "UNIT",
    "WHOLE",
    "Fields",
    "Kind",
    "Part",
    "SavedFile",
    "below",
    "checked_array",
    "difference",
    "digest",
    "json_text",
    "locked",
    "named_errors",
    "only_regular",
    "read",
    "record",
    "record_digest",
    "refuse_link",
    "remove_abandoned",
    "require_writable",
    "restored",
    "saved",
    "sha256_of",
    "sync_file",
    "sync_folder",
    "unsaved",
    "write",
    "write_atomically",
    "writing",
]
