"""FastAPI for `cargo xtask bench peers`: alone, or with asgi-idempotency-header in memory or in Redis.

PROTECTION is `none`, `memory` or `redis`; REDIS_URL says where Redis is.
"""

import asyncio
import os

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import MemoryBackend, RedisBackend
from redis.asyncio import Redis

app = FastAPI()
payments = []


@app.get("/payments")
async def listing():
    return {"data": payments}


@app.post("/payments")
async def pay(request: Request, body: dict):
    """The operation that every peer protects; see payments.js."""
    wait = int(request.headers.get("x-slow", os.environ.get("WAIT_MS", "20")))
    if wait > 0:
        await asyncio.sleep(wait / 1000)
    payment = f"pay-{len(payments)}"
    payments.append(payment)
    return JSONResponse({"id": payment, "state": "done"}, 201, {"location": f"/payments/{payment}"})


protection = os.environ.get("PROTECTION", "none")
if protection == "memory":
    app.add_middleware(IdempotencyHeaderMiddleware, backend=MemoryBackend())
elif protection == "redis":
    backend = RedisBackend(Redis.from_url(os.environ["REDIS_URL"]))
    app.add_middleware(IdempotencyHeaderMiddleware, backend=backend)
uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error", access_log=False)
