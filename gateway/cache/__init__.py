"""Settled responses, kept near: in the process (``local``) and in Redis (``shared``).

A settled response never changes, so a replay may come from here; nothing else may. Whatever fails
here is a miss: the store is asked, which is slower and as right.

``record`` says what an entry is, ``cache`` which of the two is asked when.
"""

from __future__ import annotations

from gateway.cache.cache import Cache, Recall
from gateway.cache.local import Local
from gateway.cache.look import look
from gateway.cache.record import ENTRY_LIMIT
from gateway.cache.shared import Shared
from gateway.cache.verbatim import Sent

__all__ = ["ENTRY_LIMIT", "Cache", "Local", "Recall", "Sent", "Shared", "look"]
