"""The gateway's own routes, below ``/v1/``, and the document that describes them."""
