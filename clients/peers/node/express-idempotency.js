// express-idempotency as its README says: the middleware on POST, and a handler that asks for a hit.
// Answers are kept in memory, or in the Redis of REDIS_URL by its published adapter.

import express from "express";
import expressIdempotency from "express-idempotency";
import redis from "express-idempotency-redis-adapter";
import { pay, serve } from "./payments.js";

const { idempotency, getSharedIdempotencyService } = expressIdempotency;
const options = {};
if (process.env.REDIS_URL) {
  options.dataAdapter = new redis.default({ connectionConfig: { url: process.env.REDIS_URL } });
  await options.dataAdapter.connect();
}
const app = express();
app.use(express.json());
app.post(["/payments", "/refunds"], idempotency(options), async (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return;
  await pay(request, response);
  if (response.statusCode >= 500) getSharedIdempotencyService().reportError(request);
});
serve(app);
