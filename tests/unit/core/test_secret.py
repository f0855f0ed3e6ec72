"""A secret is shown by nothing but ``reveal``."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from dataclasses import dataclass

import pytest

from gateway.core.secret import Secret, revealed

VALUE = b"sk_live_hush"


@dataclass(frozen=True)
class Holder:
    fields: tuple[tuple[bytes, Secret], ...]


def test_no_ordinary_way_of_showing_a_value_shows_it() -> None:
    secret = Secret(VALUE)
    held = Holder(((b"Authorization", secret),))
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>30}", f"{secret:>30}"]
    shown += [repr(held), repr([secret]), str([secret, (secret,)]), str({secret: secret})]
    assert not [text for text in shown if "hush" in text]
    with pytest.raises(TypeError):
        json.dumps(secret)
    for way in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError):
            way(secret)


def test_a_traceback_with_locals_does_not_show_it() -> None:
    def use(secret: Secret) -> None:
        raise ValueError(f"cannot use {secret}")

    try:
        use(Secret(VALUE))
    except ValueError as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert "hush" not in "".join(told.format())
    assert "Secret(…)" in "".join(told.format())


def test_it_is_used_by_name() -> None:
    assert Secret(VALUE).reveal() == VALUE
    assert revealed(((b"A", Secret(VALUE)),)) == ((b"A", VALUE),)
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret(b"x")
    assert Secret(VALUE) != VALUE
