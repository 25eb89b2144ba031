// @node-idempotency/core on express, as its README says: onRequest before the handler, its errors as
// the draft's statuses, onResponse with status, Location and body after it. Answers are kept in memory, or in
// the Redis of REDIS_URL by its published adapter.

import express from "express";
import core from "@node-idempotency/core";
import memory from "@node-idempotency/storage-adapter-memory";
import redis from "@node-idempotency/storage-adapter-redis";
import { pay, serve } from "./payments.js";

const { Idempotency, IdempotencyErrorCodes } = core;
const url = process.env.REDIS_URL;
const storage = url ? new redis.RedisStorageAdapter({ url }) : new memory.MemoryStorageAdapter();
if (url) await storage.connect();
const idempotency = new Idempotency(storage);
const statuses = {
  [IdempotencyErrorCodes.REQUEST_IN_PROGRESS]: 409,
  [IdempotencyErrorCodes.IDEMPOTENCY_FINGERPRINT_MISSMATCH]: 422,
};

const app = express();
app.use(express.json());
app.post(["/payments", "/refunds"], async (request, response) => {
  const seen = { method: request.method, path: request.path, headers: request.headers, body: request.body };
  let stored;
  try {
    stored = await idempotency.onRequest(seen);
  } catch (error) {
    return response.status(statuses[error.code] ?? 400).json({ code: error.code, message: error.message });
  }
  if (stored) {
    response.status(stored.additional.status).set(stored.additional.headers);
    return response.send(stored.body);
  }
  const send = response.send.bind(response);
  response.send = (body) => {
    response.send = send;
    const headers = { "content-type": response.get("content-type") };
    if (response.get("location")) headers.location = response.get("location");
    const answer = { body, additional: { status: response.statusCode, headers } };
    idempotency.onResponse(seen, answer).then(() => send(body));
    return response;
  };
  await pay(request, response);
});
serve(app);
