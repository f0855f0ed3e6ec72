"""What the drill prints: its progress, a line for each claim, and the verdict; or the same as JSON
lines."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Literal, TextIO

from gateway.drill.claims import CLAIMS, Claim

__all__ = ["Format", "OutputLost", "Report"]

Format = Literal["text", "jsonl"]

_NAMES = max(map(len, CLAIMS.values()))


class OutputLost(Exception):
    """What is told arrives nowhere, so there will be no verdict. ``reason`` ``None``: nobody reads
    on, which needs no explanation."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


class Report:
    """Writes to ``out``; times are seconds since it was made. All raise ``OutputLost``."""

    def __init__(self, out: TextIO, form: Format) -> None:
        self._out = out
        self._form = form
        self._begun = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def progress(self, variant: str, words: str) -> None:
        """One step; ``variant`` may be empty."""
        at_s = round(self.elapsed_s, 1)
        if self._form == "jsonl":
            self._json({"at_s": at_s, "variant": variant or None, "progress": words})
        else:
            self._line(f"{at_s:6.1f} s  {variant:16}  {words}")

    def claims(self, variant: str, title: str, claims: Sequence[Claim]) -> None:
        if self._form == "jsonl":
            for each in claims:
                self._json(
                    {
                        "variant": variant,
                        "claim": each.name,
                        "holds": each.holds,
                        "words": each.words,
                        "evidence": each.evidence,
                    }
                )
            return
        self._line(f"\n{variant}: {title}")
        for each in claims:
            verdict = "PASS" if each.holds else "FAIL"
            self._line(f"  {verdict}  {each.words:{_NAMES}}  {each.evidence}")

    def verdict(self, found: Mapping[str, Sequence[Claim]]) -> bool:
        """The last line; whether every claim holds."""
        claims = [each for listed in found.values() for each in listed]
        failed = [each for each in claims if not each.holds]
        holds = bool(claims) and not failed
        elapsed_s = round(self.elapsed_s)
        if self._form == "jsonl":
            self._json(
                {
                    "verdict": "holds" if holds else "does not hold",
                    "claims": len(claims),
                    "failed": len(failed),
                    "variants": list(found),
                    "seconds": elapsed_s,
                }
            )
        elif holds:
            self._line(
                f"\nVERDICT: all {len(claims)} claims hold in {_variants(found)}, {elapsed_s} s"
            )
        else:
            self._line(
                f"\nVERDICT: {len(failed)} of {len(claims)} claims do NOT hold in "
                f"{_variants(found)}, {elapsed_s} s"
            )
        return holds

    def _json(self, document: Mapping[str, object]) -> None:
        self._line(json.dumps(document, ensure_ascii=False))

    def _line(self, text: str) -> None:
        try:
            print(text, file=self._out, flush=True)
        except BrokenPipeError as error:
            raise OutputLost(None) from error
        except OSError as error:
            raise OutputLost(error.strerror) from error


def _variants(found: Mapping[str, object]) -> str:
    return "1 variant" if len(found) == 1 else f"{len(found)} variants"
