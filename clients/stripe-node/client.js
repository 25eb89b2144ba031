// Does the official SDK for Node get along with the gateway? Exit code 1 and a line per claim that
// does not hold. Started by `cargo xtask clients`, which sets the ports.

import Stripe from "stripe";
import Stripe20 from "stripe-20";

const { GATEWAY_PORT, CABLE_PORT, STUB_PORT } = process.env;
const CHARGES = 10;

const client = (port, maxNetworkRetries, Sdk = Stripe) =>
  new Sdk("sk_test_1", { host: "127.0.0.1", port, protocol: "http", maxNetworkRetries, telemetry: false });
const direct = client(GATEWAY_PORT, 0);
const patient = client(GATEWAY_PORT, 8);
const counts = async () => (await fetch(`http://127.0.0.1:${STUB_PORT}/`)).json();

let failed = 0;
function claim(what, holds, seen) {
  console.log(`   ${holds ? "ok " : "NOT"} ${what}${seen === undefined ? "" : ` (${seen})`}`);
  if (!holds) failed += 1;
}
const refusal = async (promise) => promise.then(() => ({ type: "no error" }), (error) => error);
async function begun(count) {
  while ((await counts()).begun < count) await new Promise((done) => setTimeout(done, 20));
}

// Automatic retries over a dropped connection.
const before = (await counts()).executed;
const lossy = client(CABLE_PORT, 3);
const charges = [];
for (let n = 0; n < CHARGES; n += 1) {
  charges.push((await lossy.charges.create({ amount: 100 + n, currency: "eur", source: "tok_visa" })).id);
}
const made = (await counts()).executed - before;
claim("automatic retries over a dropped connection make one charge each", made === CHARGES, `${CHARGES} calls, ${made} charges`);
claim("every call got a charge of its own", new Set(charges).size === CHARGES);

// The same key for another charge.
const idempotencyKey = "order-1";
const first = await direct.charges.create({ amount: 499, currency: "eur" }, { idempotencyKey });
const again = await direct.charges.create({ amount: 499, currency: "eur" }, { idempotencyKey });
claim("a replay is the same charge", first.id === again.id);
claim("and its marker can be read", again.lastResponse.headers["idempotent-replayed"] === "true");
const misuse = await refusal(direct.charges.create({ amount: 500, currency: "eur" }, { idempotencyKey }));
claim("another charge under the key is a StripeIdempotencyError", misuse instanceof Stripe.errors.StripeIdempotencyError, misuse.type);

// The same key while the first is running.
const slow = { amount: 1, currency: "eur", description: "slow" };
let running = direct.charges.create(slow, { idempotencyKey: "slow-1" });
await begun((await counts()).executed + 1);
const inUse = await refusal(direct.charges.create(slow, { idempotencyKey: "slow-1" }));
claim("a key in use is a 409 with its code", inUse.statusCode === 409 && inUse.code === "idempotency_key_in_use", `${inUse.type} ${inUse.code}`);
const waited = await patient.charges.create(slow, { idempotencyKey: "slow-1" });
claim("automatic retries wait for it and get its charge", waited.id === (await running).id);

// Up to version 20 the SDK judges every error by its type, from then on a v1 error by its status: a
// 409 is a StripeAPIError there, whatever its type.
running = direct.charges.create(slow, { idempotencyKey: "slow-20" });
await begun((await counts()).executed + 1);
const older = client(GATEWAY_PORT, 0, Stripe20);
const inUse20 = await refusal(older.charges.create(slow, { idempotencyKey: "slow-20" }));
claim("a key in use is a StripeIdempotencyError of version 20", inUse20 instanceof Stripe20.errors.StripeIdempotencyError, inUse20.type);
await running;

// Errors of the v2 API are judged by their type in all versions.
running = direct.rawRequest("POST", "/v2/charges", { description: "slow" }, { idempotencyKey: "slow-2" });
await begun((await counts()).executed + 1);
const inUseV2 = await refusal(direct.rawRequest("POST", "/v2/charges", { description: "slow" }, { idempotencyKey: "slow-2" }));
claim("a key in use on v2 is a StripeIdempotencyError", inUseV2 instanceof Stripe.errors.StripeIdempotencyError, inUseV2.type);
await running;

process.exit(failed === 0 ? 0 : 1);
