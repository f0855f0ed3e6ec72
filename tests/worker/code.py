"""Workers for tests. ``hold`` is a safe request that the upstream answers when the test says so."""

from __future__ import annotations

__all__ = ["HOLD_THEN_ACT", "HOLD_THEN_ACT_IN_A_THREAD", "RETURN", "TWO_STAGES", "act"]

TWO_STAGES = """
from gateway.worker import Worker

worker = Worker()


@worker.tool("order")
async def open_case(job):
    answer = await job.http.post(
        "/shop/v1/cases", step="open", json={"customer": job.payload["customer"]}, timeout_s=3
    )
    await job.http.get("/shop/v1/hold", timeout_s=60)
    account = f"account:{job.payload['account']}"
    return job.next("charge", entity=account, result={"case": answer.json()["case"]})


@worker.tool("order", stage="charge")
def charge(job):
    body = {"case": job.previous["case"]}
    answer = job.http.post("/shop/v1/charges", step="charge", json=body, timeout_s=3)
    job.http.get("/shop/v1/held", timeout_s=60)
    return {"charge": answer.json()["charge"]}
"""

HOLD_THEN_ACT = """
from gateway.worker import Worker

worker = Worker()


@worker.tool("order")
async def handle(job):
    await job.http.get("/shop/v1/hold", timeout_s=60)
    answer = await job.http.post("/shop/v1/acts", step="act", json=job.payload, timeout_s=3)
    return answer.json()
"""

HOLD_THEN_ACT_IN_A_THREAD = HOLD_THEN_ACT.replace("async ", "").replace("await ", "")

RETURN = """
from gateway.worker import Worker

worker = Worker()


@worker.tool("order")
def handle(job):
    job.http.get("/shop/v1/hold", timeout_s=60)
    return "done"
"""


def act(body: str, *, tool: str = "order", top: str = "") -> str:
    """A worker whose handler's body is ``body``."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return (
        f"{top}\nfrom gateway.worker import *\n\nworker = Worker()\n\n\n"
        f'@worker.tool("{tool}")\nasync def handle(job):\n{lines}\n'
    )
