// The operation that every peer protects: it takes as long as the caller asks for, refuses a bad
// body, fails once per key if asked to, and otherwise leaves an effect. WAIT_MS says how long it takes
// if the caller does not.

const payments = [];
const failedOnce = new Set();

export async function pay(request, response) {
  const wait = Number(request.get("x-slow") ?? process.env.WAIT_MS ?? 20);
  if (wait > 0) await new Promise((done) => setTimeout(done, wait));
  if ("bad" in request.body) return response.status(400).json({ error: "bad" });
  const key = request.get("idempotency-key");
  if (request.get("x-fail-once") && !failedOnce.has(key)) {
    failedOnce.add(key);
    return response.status(500).json({ error: "boom" });
  }
  const id = `pay-${payments.length}`;
  payments.push(id);
  return response.status(201).location(`/payments/${id}`).json({ id, state: "done" });
}

export function serve(app) {
  app.get("/", (_, response) => response.json({}));
  app.get("/payments", (_, response) => response.json({ data: payments }));
  app.listen(Number(process.env.PORT), "127.0.0.1");
}
