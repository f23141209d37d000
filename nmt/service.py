"""`nmt serve`: what is asked over HTTP and what is answered. `nmt.server` listens, `nmt.batcher` puts sentences together.

    POST /translate   {"text": "Hello." | ["Hello.", …], "nbest": 1}
                      {"translations": [{"text": "Hallo.", "hypotheses": [{"text", "score", "log_prob", "tokens", "finished"}, …]}, …]}
    POST /attention   {"source": "Hello.", "target": "Hallo."}
                      {"source": pieces [S], "target": pieces [T], "layers": [[[weight] * S] * T, …]}      end symbols last
    GET  /            a page to try it with
    GET  /health      {"status": "ok", "waiting": 0, "limits": {…}, "model": {…}}
    GET  /metrics     for Prometheus

One translation comes back for each sentence, in order, the same as `nmt translate` writes for that line; a blank one stays blank. What is
refused is refused whole, with {"error": "a sentence"}: 408 and 413 by `Guard`, 422 for what is wrong, 503 while too much is waiting.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from nmt.attention_maps import cross_attention
from nmt.batcher import BATCH, Batcher, Busy
from nmt.bundle import Bundle
from nmt.config import nearest
from nmt.errors import UserError
from nmt.guard import Guard, Refused, error_answer
from nmt.tokenizer import Tokenizer
from nmt.translation import Translation, Translator, best
from nmt.wording import requirement

PAGE = Path(__file__).with_name("service.html")
WAITING = 4096  # sentences that may wait for the model
MAP_PIECES = 128  # of a side, in an attention map


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for."""

    sentences: int = 1000
    tokens: int = 1000  # of a sentence; the time that it takes grows with their square
    body: int = 1_000_000  # bytes


class Asked(BaseModel):
    """Base of what is asked: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TranslateRequest(Asked):
    """POST /translate."""

    text: str | list[str]
    nbest: Annotated[int, Field(ge=1)] = 1


class AttentionRequest(Asked):
    """POST /attention."""

    source: str
    target: str


class Metrics:
    """What /metrics tells."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("nmt_requests", "Answers by path and status.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram("nmt_request_seconds", "From request to translations.", registry=self.registry)
        self.sentences = Counter("nmt_sentences", "Sentences translated.", registry=self.registry)
        sizes = [2**n for n in range(BATCH.bit_length())]
        self.batches = Histogram("nmt_batch_sentences", "Sentences in a batch.", buckets=sizes, registry=self.registry)
        self.waiting = Gauge("nmt_waiting_sentences", "Sentences that wait for the model.", registry=self.registry)


def build_app(bundle: Bundle, translator: Translator, limits: Limits) -> ASGIApp:
    """The whole service around a model, as an ASGI application."""
    metrics = Metrics()
    batcher = Batcher[list[Translation]](translator.translate, max(WAITING, limits.sentences), metrics.batches.observe)
    metrics.waiting.set_function(lambda: batcher.waiting)
    beam = translator.config.beam_size

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with batcher:
            yield

    app = FastAPI(title="nmt", lifespan=lifespan, docs_url=None, redoc_url=None)  # their pages would fetch scripts from elsewhere

    @app.post("/translate")
    async def translate(asked: TranslateRequest) -> dict[str, Any]:
        sentences = [asked.text] if isinstance(asked.text, str) else asked.text
        if asked.nbest > beam:
            raise Refused(422, f"nbest is {asked.nbest}, of at most {beam}, the beam size")
        sentences = accept(sentences, limits, bundle.tokenizer)
        with metrics.seconds.time():
            results = await batcher.ask(sentences, asked.nbest)
        metrics.sentences.inc(len(results))
        found = [{"text": best(result), "hypotheses": [asdict(one) for one in result[: asked.nbest]]} for result in results]
        return {"translations": found}

    @app.post("/attention")
    async def attention(asked: AttentionRequest) -> dict[str, Any]:
        texts = accept([asked.source, asked.target], limits, bundle.tokenizer)
        source, target = bundle.tokenizer.encode(texts)
        if max(len(source), len(target)) > MAP_PIECES:
            raise Refused(422, f"{len(source)} and {len(target)} tokens are too many for a map, of at most {MAP_PIECES}")
        layers = await batcher.run(cross_attention, bundle.model.eval(), source, target)
        shown = [[[round(weight, 4) for weight in row] for row in layer.tolist()] for layer in layers]
        pieces = ([*bundle.tokenizer.pieces(ids), "</s>"] for ids in (source, target))
        return dict(zip(("source", "target", "layers"), (*pieces, shown), strict=True))

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
        return HTMLResponse(
            PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        )

    @app.get("/health")
    async def health() -> JSONResponse:
        about = {key: bundle.config.get(key) for key in ("languages", "parameters")}
        content = {"status": "ok" if batcher.works else "stopped", "waiting": batcher.waiting, "beam_size": beam}
        return JSONResponse(content | {"limits": asdict(limits), "model": about}, 200 if batcher.works else 503)

    @app.get("/metrics", include_in_schema=False)
    async def tell() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        if "json" not in request.headers.get("content-type", ""):
            return error_answer(422, "the body must be JSON and say so: Content-Type: application/json")
        return error_answer(422, unfit(error.errors(), TranslateRequest if request.url.path == "/translate" else AttentionRequest))

    @app.exception_handler(HTTPException)
    async def no_such(_: Request, error: HTTPException) -> JSONResponse:
        return error_answer(error.status_code, error.detail, dict(error.headers or {}))

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return error_answer(error.status, str(error))

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return error_answer(503, str(error), {"Retry-After": "1"})

    @app.exception_handler(UserError)
    async def impossible(_: Request, error: UserError) -> JSONResponse:
        return error_answer(422, str(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return error_answer(500, "the translation failed; the service's log says why")

    paths = {route.path for route in app.routes if isinstance(route, Route)}
    return Guard(app, limits.body, lambda path, status: metrics.requests.labels(path, status).inc(), paths)


def unfit(errors: Sequence[Any], asked: type[Asked]) -> str:
    """What is wrong with a body that is no `asked`, by pydantic's `errors`. What was sent is not repeated: it may be anything."""
    first, known = max(errors, key=lambda one: len(one["loc"])), list(asked.model_fields)  # of several kinds the one that it comes nearest
    where = [part for part in first["loc"] if part not in ("body", "str", "list[str]")]
    name = f"{where[0]}[{where[1]}]" if len(where) > 1 else str(where[0]) if where else ""
    match first["type"]:
        case "json_invalid":
            return f"the body is no JSON, from character {first['loc'][-1]} on"
        case "missing" if name:
            return f"{name} is missing"
        case "extra_forbidden":
            return f"{name} is unknown: {nearest(name, known)}"
    if not name or first["type"] == "model_attributes_type":
        return f"the body must be a JSON object with {', '.join(known)}"
    alike = (one for one in errors if one["loc"][1] == first["loc"][1] and len(one["loc"]) == len(first["loc"]))
    return f"{name} must be {requirement(alike)}"


def accept(sentences: Sequence[str], limits: Limits, tokenizer: Tokenizer) -> list[str]:
    """The sentences as `nmt translate` reads lines. Raises Refused when one cannot be a line, and when they are too many or too long."""
    if len(sentences) > limits.sentences:
        raise Refused(422, f"{len(sentences):,} sentences in one request, of at most {limits.sentences:,}")
    for number, sentence in enumerate(sentences, start=1):
        for character, name in (("\n", "a line break: send each line as a sentence of its own"), ("\0", "a NUL: send plain text")):
            if character in sentence:
                raise Refused(422, f"sentence {number} holds {name}")
        try:
            sentence.encode()
        except UnicodeEncodeError:
            raise Refused(422, f"sentence {number} holds half a character (a lone surrogate): send plain text") from None
    accepted = [sentence.removesuffix("\r") for sentence in sentences]
    for number, ids in enumerate(tokenizer.encode(accepted), start=1):
        if len(ids) > limits.tokens:
            raise Refused(422, f"sentence {number} has {len(ids):,} tokens, of at most {limits.tokens:,}")
    return accepted
