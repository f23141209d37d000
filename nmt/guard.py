"""What stands between clients and the service: the size of a request, the time that it may take to come, and an answer whatever happens."""

import asyncio
from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 20.0  # for a client to send its request


class Refused(Exception):
    """A request that is not served: a status code and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Reads the body of a request before `app` sees it: at most `limit` bytes, in at most BODY_SECONDS. Counts all answers.

    `count` is told the path, "other" if it is none of `paths`, and the status code.
    """

    def __init__(self, app: ASGIApp, limit: int, count: Callable[[str, int], None], paths: set[str]) -> None:
        self.app, self.limit, self.count, self.paths = app, limit, count, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, by the ASGI protocol."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        began = False

        async def counted(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                self.count(path, message["status"])
            await send(message)

        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._read(receive)
        except TimeoutError:
            late = error_answer(408, f"the request did not come within {BODY_SECONDS:g} seconds", {"Connection": "close"})
            await late(scope, receive, counted)
            return
        except Refused as error:
            await error_answer(error.status, str(error))(scope, receive, counted)
            return
        if body is None:
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        try:
            await self.app(scope, replay, counted)
        except asyncio.CancelledError:  # the service ends, and has waited long enough
            if began:
                raise
            await error_answer(503, "the service is stopping")(scope, receive, counted)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, or None when the client went away. Raises Refused beyond the limit."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.limit:
                raise Refused(413, f"the request is larger than {self.limit:,} bytes")
            if not message.get("more_body", False):
                return bytes(body)


def error_answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request that is not served."""
    return JSONResponse({"error": sentence}, status, headers)
