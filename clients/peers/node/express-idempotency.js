// express-idempotency as its README says: the middleware on POST, and a handler that asks for a hit.

import express from "express";
import expressIdempotency from "express-idempotency";
import { pay, serve } from "./payments.js";

const { idempotency, getSharedIdempotencyService } = expressIdempotency;
const app = express();
app.use(express.json());
app.post(["/payments", "/refunds"], idempotency(), async (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return;
  await pay(request, response);
  if (response.statusCode >= 500) getSharedIdempotencyService().reportError(request);
});
serve(app);
