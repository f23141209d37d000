"""Listening for `nmt serve`: a socket, uvicorn, and an end in good order at SIGTERM or Ctrl-C."""

import os
import signal
import socket
import sys

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.errors import UserError

HEAD_SECONDS = 10.0  # for a new connection to say what it wants
STOP_SECONDS = 10  # for what is being served to end
CONNECTIONS = 512  # at once; more are told to come again


class Protocol(H11Protocol):
    """HTTP for clients that may be slow or silent: a connection that asks for nothing is closed."""

    def connection_made(self, transport: object) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.loop.call_later(HEAD_SECONDS, self._close_unless_asked)

    def _close_unless_asked(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 takes a free one. Raises UserError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; name another --host or --port") from None


def server(app: ASGIApp) -> uvicorn.Server:
    """uvicorn, set up for `app`."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve `app` on the socket until SIGTERM or SIGINT; then what is being translated is finished, for STOP_SECONDS at most."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn stops at the first, and raises it once more when it is done
    host, port, *_ = listener.getsockname()
    shown = f"[{host}]" if ":" in host else host
    print(f"nmt serves on http://{shown}:{port}, until Ctrl-C", file=sys.stderr, flush=True)
    server(app).run([listener])
    print("nmt serve: stopped", file=sys.stderr, flush=True)
