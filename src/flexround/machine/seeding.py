"""Seeds of one generator per purpose, derived from the run's identity instead of global generators."""

import hashlib


def derive(*parts: object) -> int:
    """Return a 63-bit seed from any number of parts, e.g. ``derive(run, "batches", "layer1.0")``."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
