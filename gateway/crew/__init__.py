"""Processes for a show: the demo and the drill start all they need, and nothing of it stays."""

from gateway.crew.processes import (
    Crew,
    CrewError,
    Finished,
    Interrupted,
    Interrupts,
    crew_in,
    environment,
    open_folder,
)
from gateway.crew.servers import Served, fencegate, free_port, start_database, start_gateway

__all__ = [
    "Crew",
    "CrewError",
    "Finished",
    "Interrupted",
    "Interrupts",
    "Served",
    "crew_in",
    "environment",
    "fencegate",
    "free_port",
    "open_folder",
    "start_database",
    "start_gateway",
]
