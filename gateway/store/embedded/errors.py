"""The one error of the embedded server."""

from gateway.errors import ConfigurationError

__all__ = ["EmbeddedPostgresError"]


class EmbeddedPostgresError(ConfigurationError):
    """The embedded PostgreSQL cannot be used; the message says why and names the mend."""
