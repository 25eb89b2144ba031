"""asgi-idempotency-header on starlette, as its README says: the middleware with its memory backend."""

import asyncio
import os

import uvicorn
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends.memory import MemoryBackend
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

payments = []
failed_once = set()


async def pay(request):
    """The operation that every peer protects; see payments.js."""
    body = await request.json()
    await asyncio.sleep(int(request.headers.get("x-slow", "20")) / 1000)
    if "bad" in body:
        return JSONResponse({"error": "bad"}, 400)
    key = request.headers.get("idempotency-key")
    if "x-fail-once" in request.headers and key not in failed_once:
        failed_once.add(key)
        return JSONResponse({"error": "boom"}, 500)
    payment = f"pay-{len(payments)}"
    payments.append(payment)
    headers = {"location": f"/payments/{payment}"}
    return JSONResponse({"id": payment, "state": "done"}, 201, headers)


async def listing(_):
    return JSONResponse({"data": payments})


app = Starlette(
    routes=[
        Route("/", listing),
        Route("/payments", listing, methods=["GET"]),
        Route("/payments", pay, methods=["POST"]),
        Route("/refunds", pay, methods=["POST"]),
    ],
    middleware=[Middleware(IdempotencyHeaderMiddleware, backend=MemoryBackend())],
)
uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error")
