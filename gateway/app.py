"""The one place that wires adapters: policies, database, clients and the proxy into one process."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway import faults
from gateway.api import openapi
from gateway.api.door import Door
from gateway.api.evidence import PATH as EVIDENCE
from gateway.api.evidence import Reports
from gateway.api.fences import PATH as FENCES
from gateway.api.fences import Fences
from gateway.api.jobs import Jobs, Lanes
from gateway.cache import Cache, Local, Shared
from gateway.core.budget import Shares
from gateway.core.local import foreign
from gateway.core.model import Headers
from gateway.core.secret import revealed
from gateway.errors import AnswerLost, ConfigurationError, StoreUnavailable
from gateway.jobs.journal import Journal as JobJournal
from gateway.jobs.reaper import Reaper
from gateway.jobs.sampler import Sampler
from gateway.jobs.service import Service
from gateway.observe import log
from gateway.observe.jobmetrics import Labels
from gateway.observe.metrics import Kept, Metrics
from gateway.policy import tlsfiles
from gateway.policy.compiled import CompiledCommand, Policies, Upstream
from gateway.policy.fields import FIXED_PATHS
from gateway.policy.tools import Tools
from gateway.proxy.admitting import Admitter
from gateway.proxy.background import Background
from gateway.proxy.endpoint import Endpoint
from gateway.proxy.execute import Executor
from gateway.proxy.intake import Intake
from gateway.proxy.journal import Journal
from gateway.proxy.lanes import Reading
from gateway.proxy.line import Line
from gateway.proxy.looks import Looks
from gateway.proxy.mismatches import Mismatches
from gateway.proxy.prober import AT_ONCE, Ask, Prober
from gateway.proxy.recalling import Recalling
from gateway.proxy.resending import Resender
from gateway.proxy.respond import Receive, Send
from gateway.proxy.settling import Settler
from gateway.proxy.shares import Flights, Memory
from gateway.proxy.streams import Places
from gateway.proxy.waiting import Entity, Key, WaitRoom
from gateway.settings import PREFIX, Settings
from gateway.store import audit
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.fences import FenceStore
from gateway.store.jobs import JobStore
from gateway.store.keyring import KeyRing
from gateway.store.retention import Days, Forgotten, Retainer
from gateway.store.unknowns import UnknownStore
from gateway.store.witness import Witness
from gateway.upstream import Client, Origin, Turns, now_s

__all__ = ["Gateway", "open_gateway"]

_FIXED = frozenset(path.encode("ascii") for path in FIXED_PATHS)
_READ_ONLY = _FIXED - {FENCES.encode("ascii"), EVIDENCE.encode("ascii")}


class Gateway:
    """The ASGI application of one process. Make it with ``open_gateway``, end it with ``close``."""

    def __init__(
        self,
        settings: Settings,
        policies: Policies,
        tools: Tools,
        database: Database,
        keys: KeyRing,
        pseudonym: bytes,
    ) -> None:
        self.settings = settings
        self.keys = keys
        self._database = database
        shares = Shares.of(settings.pool_size)
        turns = Turns()
        self._clients = {m.upstream.name: _client(m.upstream, turns) for m in policies.mounts}
        self._passages = {m.upstream.name: _client(m.upstream, turns) for m in policies.mounts}
        self.metrics = Metrics(
            (c.rules.policy for c in policies.commands()),
            Labels(tuple(tools.by_name), tools.models, tools.providers),
        )
        journal = Journal(self.metrics)
        self.witness = Witness(database, now_s)
        self._looks = Looks(self._not_writable, now_s)
        store = CommandStore(database, self.witness)
        self.room = WaitRoom(
            store.ready,
            limit=settings.max_waiting,
            limit_per_topic=settings.max_waiting_per_key,
            several=self._several,
        )
        self._background = Background()
        self._late = Background()
        unknowns = UnknownStore(database, self.witness)
        self._probes = {m.upstream.name: _probe_client(m.upstream, turns) for m in policies.mounts}
        self._prober = Prober(
            unknowns,
            _asks(policies, self._probes, pseudonym),
            clock=now_s,
            changed=self._changed,
            on_probed=lambda _, result: self.metrics.probed(result),
            chance=random.random,
        )
        batch_limit = settings.batch_limit
        self._line = Line(
            # Of batches, one that is on its way and one that forms.
            2 * batch_limit if batch_limit > 1 else settings.pool_size,
            limit=settings.max_waiting,
            limit_per_topic=settings.max_waiting_per_key,
            several=self._several,
        )
        beside = shares.beside if batch_limit > 1 else settings.pool_size
        self._admitter = Admitter(store, now_s, batch_limit=batch_limit, beside=beside)
        self._settler = Settler(
            store, self.metrics.store_retry, batch_limit=batch_limit, beside=beside
        )
        self._cache = self._made_cache(policies, pseudonym)
        executor = Executor(
            admitter=self._admitter,
            settler=self._settler,
            resender=Resender(unknowns, now_s),
            prober=self._prober,
            room=self.room,
            background=self._background,
            late=self._late,
            clock=now_s,
            on_settled=journal.settled,
            recalling=Recalling(self._cache),
            line=self._line,
        )
        self.memory = Memory(settings.memory_mib * 2**20, self._several)
        _check_bodies_fit(policies, self.memory)
        reading = Reading.in_a_thread()
        self._endpoint = Endpoint(
            Intake(
                policies,
                self._clients,
                self._passages,
                keys,
                pseudonym,
                settings.trusted,
                self.memory,
                reading,
                self._cache,
            ),
            executor,
            journal,
            Mismatches(partial(audit.append, database), shares.mismatches),
            Flights(settings.max_attempts, self._several),
            self._streams(policies),
        )
        self.metrics.watch(
            attempts=lambda: len(self._endpoint.running) - self.room.count,
            waiting=lambda: self.room.count,
            key_age_s=lambda: self.keys.age_s or 0.0,
            rows_lost=lambda: self.witness.lost_rows,
            cache_bytes=lambda: self._cache.local.size if self._cache else 0,
            cache_entries=lambda: len(self._cache.local) if self._cache else 0,
        )
        self._retainer = Retainer(
            database,
            Days(settings.audit_days, settings.job_days, settings.job_key_days),
            key_days=max((c.rules.key_days for c in policies.commands()), default=0),
            clock=now_s,
            on_forgotten=self._count_forgotten,
        )
        self._door = door = Door(
            keys, self.metrics, lambda: self.room.closing, self.memory, settings.trusted
        )
        jobs, of_jobs = JobStore(database, self.witness), JobJournal(self.metrics.jobs)
        self._jobs = Jobs(
            door,
            Service(jobs, tools, of_jobs, random.random),
            Lanes.of_shares(shares),
            reading,
        )
        self._reaper = Reaper(jobs, tools, of_jobs, random.random)
        self._sampler = Sampler(jobs, self.metrics.jobs.leases, now_s)
        self._fixed = Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/openapi.json", self._openapi),
                Route(FENCES, self._fences(door, shares.fences)),
                Route(EVIDENCE, self._reports(door, unknowns, policies, shares.evidence)),
            ]
        )
        self._poll: asyncio.Task[None] | None = None
        self._drained_by = 0.0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Plain ASGI; Starlette serves only the fixed paths and stays off the guarded one."""
        if scope["type"] != "http":
            return
        # As it came: a proxy in front that guards a path need not know its encoded twins.
        if scope["raw_path"] in _READ_ONLY and scope["method"] not in ("GET", "HEAD"):
            await self._door.refuse_method(scope, receive, send)
        elif scope["raw_path"] in _FIXED:
            await self._fixed(scope, receive, send)  # type: ignore[arg-type]
        elif self._jobs.serves(scope["raw_path"]):
            await self._jobs(scope, receive, send)
        else:
            await self._endpoint(scope, receive, send)

    def start(self) -> None:
        """Start what runs beside the requests."""
        self.keys.start()
        self.witness.start()
        self._reaper.start()
        self._prober.start()
        self._retainer.start()
        if self._cache is not None:
            self._cache.start()
        self._poll = asyncio.create_task(self.room.poll(), name="wait room")

    def stop_admitting(self) -> None:
        """From now on nothing new is admitted, and waiting callers are answered at once."""
        if self.room.closing:
            return
        if self._poll is not None:
            log.event("draining", attempts=len(self._endpoint.running))
        self._drained_by = now_s() + self.settings.drain_s
        self._prober.stop_looking()
        self.room.close()
        self._line.close()
        faults.reach("drain.begun")

    async def close(self) -> None:
        """Drain, settle, then leave the rest to time: what is not recorded becomes unknown."""
        self.stop_admitting()
        left = 0
        for tasks in (self._endpoint.running, self._background):
            left += await tasks.drain(max(self._drained_by - now_s(), 0))
        faults.reach("drain.ended")
        if left or len(self._late):
            # Late answers are read only while the process lives; the drain does not wait for them.
            log.event("left_to_time", level="warning", attempts=left, late=len(self._late))
        for tasks in (self._endpoint.running, self._background, self._late):
            await tasks.cancel()
        await self._admitter.stop()
        await self._settler.stop()
        await self._reaper.stop()
        await self._sampler.stop()
        await self._prober.stop()
        await self._retainer.stop()
        await self._looks.stop()
        await self.witness.stop()
        await self.keys.stop()
        clients = (self._clients, self._passages, self._probes)
        for client in (each for named in clients for each in named.values()):
            await client.close()
        if self._cache is not None:
            await self._cache.close()
        await self._database.close()
        if self._poll is not None:
            self._poll.cancel()
            log.event("stopped")

    def _streams(self, policies: Policies) -> dict[str, Places]:
        upstreams = (mount.upstream for mount in policies.mounts)
        return {each.name: Places(each.max_connections, self._several) for each in upstreams}

    def _several(self) -> bool:
        """Whether gateway keys of more than one tenant are in force."""
        keys = self.keys.current()
        return keys is not None and keys.several

    def _made_cache(self, policies: Policies, pseudonym: bytes) -> Cache | None:
        """The cache of settled responses, where a policy has use for one and there is a place."""
        longest_s = max((command.rules.cache_s for command in policies.commands()), default=0)
        url, room = self.settings.redis_url, self.settings.cache_mib * 2**20
        if not longest_s or not (room or url):
            return None
        shared = None if url is None else Shared(url, pseudonym + b":", self.metrics.cache_wrote)
        return Cache(
            Local(room, longest_s),
            shared,
            clock=now_s,
            wall=time.time,
            asked=self.metrics.cache_asked,
            barred=lambda: self.witness.lost_rows > 0,
        )

    def _fences(self, door: Door, share: int) -> Fences:
        return Fences(door, FenceStore(self._database, self.witness), self.metrics, at_once=share)

    def _reports(
        self, door: Door, unknowns: UnknownStore, policies: Policies, share: int
    ) -> Reports:
        keep = {c.rules.policy: c.rules.keep_limit for c in policies.commands()}
        return Reports(door, unknowns, self._changed, keep_limits=keep, at_once=share)

    def _changed(self, tenant: int, key_digest: bytes, entity: str | None) -> None:
        """A command was decided by something else than its own attempt."""
        self.room.wake(Key(tenant, key_digest))
        if entity is not None:
            self.room.wake(Entity(tenant, entity))

    def _count_forgotten(self, gone: Forgotten) -> None:
        for what in get_args(Kept):
            if count := getattr(gone, what):
                self.metrics.forgotten(what, count)

    async def _healthz(self, _: Request) -> Response:
        """Alive: the process answers. It asks nothing of the database."""
        return JSONResponse({"status": "ok"})

    async def _readyz(self, _: Request) -> Response:
        """Ready: it admits, its keys are fresh and its database takes writes."""
        reason = await self._not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    async def _not_ready(self) -> str | None:
        if self.room.closing:
            return "the process is stopping"
        if self.keys.current() is None:
            return "the gateway keys could not be read for too long"
        return self.witness.lost or await self._looks.reason()

    async def _not_writable(self) -> str | None:
        try:
            return await self.witness.not_writable()
        except (StoreUnavailable, AnswerLost) as error:
            return str(error)

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(openapi.document())

    def _foreign(self, request: Request) -> str | None:
        """Why a page of another site may be asking, while no key exists and nobody opened them."""
        snapshot = self.keys.current()
        if self.settings.metrics_open or snapshot is None or snapshot.anonymous is None:
            return None
        return foreign(tuple(request.scope["headers"]))

    async def _metrics(self, request: Request) -> Response:
        if not self.settings.metrics_open and not _is_near(request):
            reason = (
                f"/metrics answers this machine only; set {PREFIX}METRICS_OPEN=true to change it"
            )
            return JSONResponse({"status": "forbidden", "reason": reason}, status_code=403)
        wrong = self._foreign(request)
        if wrong is not None:
            return JSONResponse({"status": "forbidden", "reason": wrong}, status_code=403)
        await self._sampler.refresh()
        body, content_type = self.metrics.render()
        return Response(body, headers={"content-type": content_type})


async def open_gateway(settings: Settings, policies: Policies, tools: Tools, dsn: str) -> Gateway:
    """Connect and wire one process.

    Raises ``ConfigurationError`` where serving would break a promise, and ``StoreUnavailable``
    where the database cannot be reached.
    """
    database = await Database.open(
        dsn, size=settings.pool_size, statement_cache_size=settings.statement_cache_size
    )
    try:
        store = CommandStore(database)
        keys = KeyRing(database, now_s)
        await keys.refresh()
        await _check_serial(store, policies)
        pseudonym = await store.pseudonym()
    except BaseException:
        await database.close()
        raise
    return Gateway(settings, policies, tools, database, keys, pseudonym)


async def _check_serial(store: CommandStore, policies: Policies) -> None:
    """A policy made serial must not start while commands admitted before hold no slot (G3)."""
    serial = [c.rules.policy for c in policies.commands() if c.rules.serial]
    still_open = await store.open_parallel(serial)
    if still_open:
        raise ConfigurationError(
            "serial = true was switched on while these commands of it are open:\n  "
            + "\n  ".join(still_open)
            + "\nserve with serial = false until they are settled or resolved "
            "(fencegate commands list --state unknown)"
        )


def _is_near(request: Request) -> bool:
    """Whether the caller's address is a loopback one. Fields of proxies prove nothing here."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _check_bodies_fit(policies: Policies, memory: Memory) -> None:
    """A body that the policy allows must fit where nothing else is there."""
    for command in policies.commands():
        limit = command.rules.request_limit
        if limit > memory.largest:
            raise ConfigurationError(
                f"request_limit of {command.rules.policy} is {limit} bytes, and all large bodies "
                f"together may take {memory.largest}; raise {PREFIX}MEMORY_MIB, or lower it"
            )


def _asks(policies: Policies, clients: Mapping[str, Client], pseudonym: bytes) -> dict[str, Ask]:
    """How each command with a status query is asked about."""
    return {
        command.rules.policy: Ask(
            client=clients[command.upstream.name],
            headers=_probe_fields(command, pseudonym),
            rules=command.rules.probe,
            digest=command.upstream_digest,
            keep_limit=command.rules.keep_limit,
        )
        for command in policies.commands()
        if command.rules.probe is not None
    }


def _probe_fields(command: CompiledCommand, pseudonym: bytes) -> Headers:
    """Nothing of the caller's; the policy's own, those of the probe over those of the upstream."""
    own = {name.lower() for name, _ in command.probe_headers}
    ours = {*own, *(name.lower() for name, _ in command.upstream.headers)}
    usual = ((b"accept", b"application/json"), (b"accept-encoding", b"identity"))
    fields = (*(pair for pair in usual if pair[0] not in ours), *revealed(command.upstream.headers))
    return (
        (b"host", command.upstream.authority),
        *(pair for pair in fields if pair[0].lower() not in own),
        *revealed(command.probe_headers),
        (b"via", b"1.1 " + pseudonym),
    )


def _probe_client(upstream: Upstream, turns: Turns) -> Client:
    """Apart from commands and streams, which it must not wait for, nor they for it."""
    return _client(replace(upstream, max_connections=AT_ONCE), turns)


def _client(upstream: Upstream, turns: Turns) -> Client:
    context = None
    files = (upstream.ca_file, upstream.client_cert_file, upstream.client_key_file)
    if any(files):
        try:
            context = tlsfiles.context(*files)
        except OSError as error:
            raise ConfigurationError(
                f"the TLS files of policy {upstream.name} changed while this process started "
                f"({error}); see `fencegate check`"
            ) from error
    return Client(
        Origin.parse(upstream.url),
        max_connections=upstream.max_connections,
        idle_s=upstream.idle_s,
        ssl_context=context,
        turns=turns,
        networks=upstream.allow_networks,
    )
