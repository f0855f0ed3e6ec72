"""What is sent to the gateway and to nginx alike: the rules of RFC 9110 and RFC 9112 at their
edges.

One list for three readers: the comparison (``test_reference.py``), its page
(docs/http-reference.md) and the fuzz tests, which hold the same inputs against their invariants.
``tries`` is one line that says what an input tries; ``right`` says who is, where the answers
differ, and by which section.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BODY", "INPUTS", "Raw"]

BODY = b'{"a":1}'

_SHAPES = {
    "command": (b"POST", b"/pay/v1/accounts/%b/charges"),
    "passage": (b"GET", b"/pay/v1/accounts/%b/charges"),
}


@dataclass(frozen=True, slots=True)
class Raw:
    """``text``: the bytes, with METHOD, TARGET (a path) and TOKEN to be filled in, and OWN for the
    field lines of a command."""

    name: str
    tries: str
    text: bytes
    right: str = ""

    def filled(self, shape: str, token: bytes, *fields: bytes) -> bytes:
        """As a ``command`` or as a ``passage``; ``fields``: lines of the test's own."""
        method, target = _SHAPES[shape]
        own = [b"X-Token: " + token, *fields]
        if shape == "command":
            own += [b"Idempotency-Key: k-" + token, b"X-Execution-Fence: 1"]
        text = self.text.replace(b"METHOD", method).replace(b"TARGET", target % token)
        return text.replace(b"OWN", b"\r\n".join(own)).replace(b"TOKEN", token)


def _raw(
    name: str,
    tries: str,
    *fields: bytes,
    right: str = "",
    line: bytes = b"METHOD TARGET HTTP/1.1",
    host: bytes = b"Host: localhost",
    body: bytes = BODY,
    length: bool = True,
    front: bytes = b"",
    behind: bytes = b"",
) -> Raw:
    lines = [line, *([host] if host else []), b"OWN", b"Content-Type: application/json", *fields]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return Raw(name, tries, front + b"\r\n".join([*lines, b"", b""]) + body + behind, right)


def _coded(name: str, tries: str, *fields: bytes, body: bytes, right: str = "") -> Raw:
    return _raw(name, tries, *fields, right=right, body=body, length=False)


_TE = b"Transfer-Encoding: chunked"
_CHUNKS = b'7\r\n{"a":1}\r\n0\r\n\r\n'
_INNER = (
    b"METHOD TARGET HTTP/1.1\r\nHost: localhost\r\nOWN\r\nContent-Type: application/json\r\n"
    b"Content-Length: 7\r\n\r\n" + BODY
)

INPUTS: tuple[Raw, ...] = (
    _raw("plain", "nothing: well-formed, with a length"),
    _coded("chunked", "a body in chunks", _TE, body=_CHUNKS),
    _coded(
        "chunked in capitals",
        "codings are case-insensitive",
        b"Transfer-Encoding: CHUNKED",
        body=_CHUNKS,
    ),
    _coded(
        "chunk extension",
        "an extension behind a size",
        _TE,
        body=b'7;a="b"\r\n{"a":1}\r\n0\r\n\r\n',
    ),
    _coded(
        "trailer", "a field behind the last chunk", _TE, body=b'7\r\n{"a":1}\r\n0\r\nX-T: 1\r\n\r\n'
    ),
    _raw("obs-text", "bytes above 127 in a value", b"X-A: caf\xe9"),
    _raw("blanks around a value", "optional blanks, also a tab", b"X-A: \t b \t "),
    _raw("empty value", "a field without a value", b"X-A:"),
    _raw("empty lines in front", "CRLF before the request line", front=b"\r\n\r\n"),
    # -- where a message ends
    _raw("length and chunked", "two framings at once", _TE, body=_CHUNKS),
    _raw(
        "length and chunked, smuggling",
        "a second request behind the last chunk",
        _TE,
        body=b"0\r\n\r\n" + _INNER,
    ),
    _raw("two equal lengths", "the length twice", b"Content-Length: 7"),
    _raw("two lengths", "two lengths that differ", b"Content-Length: 6"),
    _raw(
        "length in a list", "one line, twice the same number", b"Content-Length: 7, 7", length=False
    ),
    _raw("length with a sign", "+7", b"Content-Length: +7", length=False),
    _raw("length in hexadecimal", "0x7", b"Content-Length: 0x7", length=False),
    _raw("length with a nought in front", "07", b"Content-Length: 07", length=False),
    _raw("empty length", "no digit at all", b"Content-Length:", length=False),
    _raw(
        "length beyond 64 bits",
        "an overflow",
        b"Content-Length: 18446744073709551623",
        length=False,
    ),
    _coded(
        "unknown coding",
        "a coding that nobody knows",
        b"Transfer-Encoding: foo",
        body=_CHUNKS,
        right=(
            "nginx, by a SHOULD: RFC 9112 §6.1 asks for 501 where a coding is not understood. "
            "Both refuse; the gateway's list of problems is closed and has no 501"
        ),
    ),
    _coded(
        "coding before chunked",
        "gzip, chunked",
        b"Transfer-Encoding: gzip, chunked",
        body=_CHUNKS,
        right="as above: RFC 9112 §6.1",
    ),
    _coded(
        "chunked is not last",
        "chunked, identity",
        b"Transfer-Encoding: chunked, identity",
        body=_CHUNKS,
        right=(
            "the gateway: where chunked is not the last coding the length cannot be told, so 400 "
            "and close, RFC 9112 §6.3"
        ),
    ),
    _coded("chunked twice", "two lines of it", _TE, _TE, body=_CHUNKS),
    _coded(
        "vertical tab before chunked",
        "another blank than SP and HTAB",
        b"Transfer-Encoding: \x0bchunked",
        body=_CHUNKS,
        right=(
            "the gateway: a value with 0x0B is invalid, RFC 9110 §5.5, so this is no coding but a"
            " malformed field, RFC 9112 §2.2"
        ),
    ),
    _raw(
        "chunked in HTTP/1.0",
        "a coding that the version does not know",
        _TE,
        line=b"METHOD TARGET HTTP/1.0",
        body=_CHUNKS,
        length=False,
    ),
    _coded("chunk size with a sign", "+7", _TE, body=b'+7\r\n{"a":1}\r\n0\r\n\r\n'),
    _coded("chunk size in C's notation", "0x7", _TE, body=b'0x7\r\n{"a":1}\r\n0\r\n\r\n'),
    _coded(
        "chunk size overflows",
        "25 digits",
        _TE,
        body=b'1000000000000000000000007\r\n{"a":1}\r\n0\r\n\r\n',
    ),
    _coded(
        "chunk size ends in LF",
        "a bare LF behind the size",
        _TE,
        body=b'7\n{"a":1}\r\n0\r\n\r\n',
        right=(
            "the gateway: a chunk's lines end in CRLF, RFC 9112 §7.1; the leniency of §2.2 is for"
            " the request line and fields alone"
        ),
    ),
    _coded(
        "chunk ends in LF",
        "a bare LF behind the data",
        _TE,
        body=b'7\r\n{"a":1}\n0\r\n\r\n',
        right="the gateway: RFC 9112 §7.1, as above",
    ),
    _coded(
        "LF in a chunk extension",
        "a bare LF in a quoted string",
        _TE,
        body=b'7;a="\n"\r\n{"a":1}\r\n0\r\n\r\n',
    ),
    _coded(
        "chunk longer than it says",
        "data behind the size's end",
        _TE,
        body=b'5\r\n{"a":1}\r\n0\r\n\r\n',
    ),
    _coded(
        "blank behind a chunk size",
        "a blank before the line end",
        _TE,
        body=b'7 \r\n{"a":1}\r\n0\r\n\r\n',
        right="the gateway: blanks stand there only before a `;`, RFC 9112 §7.1.1",
    ),
    # -- field lines
    _raw(
        "blank before the colon",
        "Transfer-Encoding with a blank behind it",
        b"Transfer-Encoding : chunked",
        body=b"0\r\n\r\n" + _INNER,
    ),
    _raw("folded line", "a value that goes on in the next line", b"X-A: b\r\n c"),
    _raw("fold in front", "the first field begins with a blank", host=b" Host: localhost"),
    _raw(
        "no colon",
        "a line that is no field",
        b"X-A",
        right=(
            "the gateway: a line that is no field line is a 400, RFC 9112 §2.2 and §5. nginx "
            "makes an empty field of it"
        ),
    ),
    _raw("blank in a name", "a name that is no token", b"X A: 1"),
    _raw(
        "byte above 127 in a name",
        "a name that is no token",
        b"X-A\xe9: 1",
        right=(
            "the gateway: a name is a token, RFC 9110 §5.6.2, so a 400, RFC 9112 §2.2. nginx "
            "drops the line unseen"
        ),
    ),
    _raw("empty name", "a line that begins with the colon", b": 1"),
    _raw("NUL in a value", "a control character", b"X-A: a\0b"),
    _raw("bare CR in a value", "a CR without LF", b"X-A: a\rX-B: b"),
    _raw(
        "other control character",
        "0x01 in a value",
        b"X-A: a\x01b",
        right=(
            "both: RFC 9110 §5.5 calls it invalid, and lets a recipient keep it where that is "
            "safe. The gateway does not know what is safe behind it"
        ),
    ),
    Raw(
        "lines end in LF",
        "a head whose lines end in LF alone",
        _raw("", "").text.replace(b"\r\n", b"\n"),
        right=(
            "both: RFC 9112 §2.2 says that a recipient MAY take LF alone. Readers who do not then"
            " see another message, so the gateway does not"
        ),
    ),
    _raw(
        "LF in front",
        "a bare LF before the request line",
        front=b"\n",
        right="both: RFC 9112 §2.2 asks to pass over CRLF there; LF alone is the MAY as above",
    ),
    _raw(
        "underscore twin",
        "Transfer_Encoding, which CGI takes for the field",
        b"Transfer_Encoding: chunked",
    ),
    # -- request line and host
    _raw("no Host", "HTTP/1.1 without Host", host=b""),
    _raw("two Hosts", "Host twice", b"Host: evil.example"),
    _raw("empty Host", "Host without a name", host=b"Host:"),
    _raw(
        "Host with a user",
        "user@host",
        host=b"Host: a@localhost",
        right=(
            "the gateway: an invalid Host MUST be a 400, RFC 9112 §3.2; a Host has no user, RFC "
            "9110 §7.2"
        ),
    ),
    _raw("Host with a path", "host/x", host=b"Host: localhost/x"),
    _raw(
        "absolute form",
        "a URL whose host Host names",
        line=b"METHOD http://localhostTARGET HTTP/1.1",
    ),
    _raw(
        "absolute form of another host",
        "a URL with another host than Host",
        line=b"METHOD http://evil.exampleTARGET HTTP/1.1",
        right=(
            "nginx, by the letter of RFC 9112 §3.2.2: the target's host goes before the field's. "
            "The caller broke §3.2, and a reader who goes by the field sees another host, so the "
            "gateway refuses"
        ),
    ),
    _raw(
        "two blanks in the request line",
        "a blank too many",
        line=b"METHOD  TARGET HTTP/1.1",
        right=(
            "both: one blank, RFC 9112 §3, which also says that a recipient MAY be lenient. The "
            "gateway is not, for the reasons that it gives there"
        ),
    ),
    _raw("blank in the target", "a target with a raw blank", line=b"METHOD TARGET /x HTTP/1.1"),
    _raw(
        "fragment",
        "a target with a #",
        line=b"METHOD TARGET#x HTTP/1.1",
        right="the gateway: no form of a target has a fragment, RFC 9112 §3.2. nginx passes it up",
    ),
    _raw(
        "version 2.0",
        "a version that is not spoken",
        line=b"METHOD TARGET HTTP/2.0",
        right=(
            "nginx: 505 is for a major version that is not spoken, RFC 9110 §15.6.6. Both refuse,"
            " as above"
        ),
    ),
    _raw(
        "no version",
        "HTTP/0.9 with fields",
        line=b"METHOD TARGET",
        right=(
            "the gateway: a request line has a version, RFC 9112 §3. nginx takes a GET for "
            "HTTP/0.9, drops all fields, and passes it up as HTTP/1.1"
        ),
    ),
    _raw("encoded NUL", "%00 in the path", line=b"METHOD TARGET%00 HTTP/1.1"),
    _raw(
        "second request at once",
        "two requests in one write",
        behind=_INNER,
        right=(
            "both: RFC 9112 §9.3.2 has the caller send again what was not answered when the "
            "connection closes. The gateway closes behind the first answer, and never executes "
            "the second"
        ),
    ),
)
