"""What a model may ask for, and what becomes of it. Nothing here asks anybody.

A plan is text from a model: whatever it names is checked against what stands here. Leases,
attempts, delays, priorities and limits are not in it, and a plan that names them is refused: they
belong to ``tools.toml``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["APPROVAL_ABOVE", "Plan", "Refused", "Step", "read_plan"]

APPROVAL_ABOVE = 100_000
"""Cents that are charged without a person's approval."""

_MOST = 1_000_000
"""Cents that are charged at all, whoever agrees: more is not a machine's matter."""

_STEPS = 20
"""Of one plan. A longer one is more likely a loop of the model's than work."""

_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ChargeArguments(_Strict):
    invoice: _Name
    amount: Annotated[int, Field(gt=0, le=_MOST)]
    currency: Literal["EUR", "USD"]


class CaseArguments(_Strict):
    customer: _Name
    title: Annotated[str, Field(min_length=1, max_length=200)]


class _Step(_Strict):
    id: _Name
    user: _Name
    depends_on: list[_Name] = []


class ChargeStep(_Step):
    tool: Literal["plan_charge"]
    arguments: ChargeArguments

    @property
    def entity(self) -> str:
        """As the gateway's policy derives it from the request."""
        return f"invoice:{self.arguments.invoice}"


class CaseStep(_Step):
    tool: Literal["plan_case"]
    arguments: CaseArguments

    @property
    def entity(self) -> str:
        return f"customer:{self.arguments.customer}"


Step = Annotated[ChargeStep | CaseStep, Field(discriminator="tool")]


class Plan(_Strict):
    steps: Annotated[list[Step], Field(min_length=1, max_length=_STEPS)]


class Refused(Exception):
    """Why a plan is not carried out: all of it, for whoever asks the model again."""


def read_plan(raw: bytes, users: Collection[str]) -> Plan:
    """The plan, with its steps in an order in which each follows what it depends on; or raise
    ``Refused``. ``users``: those of this conversation; the model cannot act for another."""
    try:
        plan = Plan.model_validate_json(raw)
    except ValidationError as error:
        raise Refused("\n".join(_line(each) for each in error.errors())) from None
    named: dict[str, Any] = {}
    mistakes = []
    for step in plan.steps:
        if step.id in named:
            mistakes.append(f"step {step.id} is there twice; name each once")
        if step.user not in users:
            mistakes.append(f"step {step.id}: {step.user} is not in this conversation")
        named[step.id] = step
    for step in plan.steps:
        for needed in step.depends_on:
            if needed not in named:
                mistakes.append(f"step {step.id} depends on {needed}, which is not in the plan")
    if mistakes:
        raise Refused("\n".join(mistakes))
    return Plan(steps=_in_order(named))


def _in_order(left: dict[str, Any]) -> list[Any]:
    done: list[Any] = []
    while left:
        ready = [step for step in left.values() if not left.keys() & set(step.depends_on)]
        if not ready:
            raise Refused(f"steps {', '.join(left)} wait for each other; remove one dependency")
        done += ready
        left = {name: step for name, step in left.items() if step not in ready}
    return done


def _line(error: Mapping[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    return f"{path or 'the plan'}: {error['msg']}"
