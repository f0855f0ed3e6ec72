"""The tools that plans may use; ``fencegate worker run worker:worker`` runs it as well."""

from __future__ import annotations

from typing import Any

import httpx
from plan import APPROVAL_ABOVE

from gateway.worker import Job, Unretryable, Worker

worker = Worker()


@worker.tool("plan_charge")
async def look(job: Job) -> Any:
    """Whether a person must agree. Decided here, from the amount: no plan can leave it out."""
    amount = job.payload["arguments"]["amount"]
    return job.next("pay", entity=job.entity, wait=amount > APPROVAL_ABOVE)


@worker.tool("plan_charge", stage="pay")
async def pay(job: Job) -> dict[str, Any]:
    wanted = job.payload["arguments"]
    answer = await job.http.post(
        f"/legacy/v1/invoices/{wanted['invoice']}/capture",
        step="capture",
        json={"amount": wanted["amount"], "currency": wanted["currency"]},
    )
    return {"capture": _made(answer)}


@worker.tool("plan_case")
async def open_case(job: Job) -> dict[str, Any]:
    wanted, results = job.payload["arguments"], job.payload["results"]
    captures = ", ".join(str(each["capture"]) for each in results.values() if "capture" in each)
    title = f"{wanted['title']} ({captures})" if captures else wanted["title"]
    answer = await job.http.post(
        "/legacy/v1/cases", step="open", json={"customer_id": wanted["customer"], "title": title}
    )
    return {"case": _made(answer)}


def _made(answer: httpx.Response) -> str:
    if answer.status_code != 201:  # final for its key: the same command would hear it again
        raise Unretryable(f"the API answered {answer.status_code}: {answer.text[:500]}")
    return str(answer.json()["id"])


if __name__ == "__main__":
    worker.run()
