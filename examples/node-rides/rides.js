// How is a ride booked, charged and receipted once, with SQL functions only? Express and pg; README.md says how to run it.
const crypto = require("node:crypto");
const fs = require("node:fs");
const os = require("node:os");
const express = require("express");
const breakPoint = require("./break_points.js");
const Database = require("./database.js");

const { LISTEN = "127.0.0.1:3000", PROVIDER = "http://127.0.0.1:4000" } = process.env;
const milliseconds = (name, usual) => Number(process.env[name] ?? usual);
const LEASE = milliseconds("LEASE_MS", 60_000);
const DEADLINE = Math.min(Math.floor(LEASE / 3), 20_000);
// How long the provider remembers a key (null: it takes none), and what is taken off from that.
const PROMISE = [milliseconds("PROVIDER_REMEMBERS_MS", 86_400_000) || null, DEADLINE, milliseconds("PROVIDER_MARGIN_MS", 300_000), LEASE * 3];
const FLOW = "create_ride/1";
const SCOPE = "retrysafe.scope('account', retrysafe.credential_digest($1))";
const SETTLE_IN = "SELECT retrysafe.settle_in($1, $2, 'completed', $3, $4, $5, $6)";
const REFUSALS = { unknown: [409, "outcome_unknown"], mismatch: [422, "idempotency_key_reused"], failed: [503, "handler_failed"] };
const bytes = (value) => Buffer.from(JSON.stringify(value));
const answer = (status, document) => [status, [["content-type", "application/json"]], bytes(document)];

class NotSent extends Error {} // not a byte has left: connection refused, name not found, or too late
class Declined extends Error {} // the provider's status says so: an answer that cannot be read is no decline

function refusal(decision) {
  const [status, code] = REFUSALS[decision] ?? [409, "request_in_progress"];
  const [, headers, body] = answer(status, { status, code });
  return [status, [...headers, ["retry-after", "1"]], body];
}

// Sends the charge once.
async function chargeCard(booking, key, body) {
  const asked = { method: "POST", body, headers: { "idempotency-key": key }, redirect: "error", signal: AbortSignal.timeout(DEADLINE) };
  const told = await fetch(`${PROVIDER}/charges`, asked).catch((error) => {
    throw ["ECONNREFUSED", "ENOTFOUND"].includes(error.cause?.code) ? new NotSent() : error;
  });
  const text = await told.text();
  await breakPoint(booking, "charge answered");
  if (told.status === 402) throw new Declined();
  // A 5xx, and "this key is in use", say nothing about the charge.
  if (told.status !== 201) throw new Error(`the provider answered ${told.status}`);
  return JSON.parse(text).charge;
}

// Status, headers and body of the answer, and whether it is a replay.
async function createRide(db, account, key, body) {
  const owner = crypto.randomInt(2 ** 47);
  const begin = `CALL retrysafe.begin(${SCOPE}, $2, retrysafe.fingerprint('POST', '/rides', $3), ARRAY[$4],
    lease_ms => $5, owner => $6, method => 'POST', path => '/rides')`;
  const begun = await db.ask(begin, account, key, body, FLOW, LEASE, owner).catch(async () => {
    await db.connect(); // nothing was sent; if the begin was applied, it is taken back
    await db.ask(`SELECT retrysafe.withdraw(retrysafe.record_id(${SCOPE}, $2), $3)`, account, key, owner);
    return { decision: "failed" };
  });
  if (begun.decision === "replay") return [begun.status, begun.headers, begun.body, true];
  if (begun.decision !== "execute") return refusal(begun.decision);
  const me = [begun.id, begun.fence];
  const outputs = (begun.outputs ?? []).map((output) => JSON.parse(output));
  try {
    await breakPoint(JSON.parse(body).booking, "request begun");
    const start = "CALL retrysafe.start($1, $2, $3, $4)";
    const point = begun.recovery_point ?? (await db.askAgain(start, ...me, FLOW, body)).recovery_point;
    return await runPhases(db, me, point, outputs, JSON.parse(body));
  } catch (error) {
    if (error.isPanic) throw error;
    // It may be tried again; while a call may be in flight, the record knows better.
    await db.askAgain("CALL retrysafe.settle($1, $2, 'retryable')", ...me).catch(() => {});
    return refusal("failed");
  }
}

async function runPhases(db, me, point, outputs, { booking, place, cents }) {
  if (point === "before 0") {
    const conflict = await db.transaction(me, async () => {
      await breakPoint(booking, "ride begun");
      const insert = "INSERT INTO ride (booking, place, cents) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING id";
      const ride = await db.ask(insert, booking, place, cents);
      const booked = answer(409, { error: "this booking has a ride already" });
      if (!ride) return (await db.ask(SETTLE_IN, ...me, ...booked, point)) && booked;
      await db.ask("INSERT INTO ride_event (ride, what) VALUES ($1, 'created')", ride.id);
      outputs = [Number(ride.id)];
      point = (await db.ask("SELECT retrysafe.advance_in($1, $2, $3, $4) AS point", ...me, point, bytes(outputs[0]))).point;
      await breakPoint(booking, "ride to commit");
    });
    if (conflict) return conflict;
  }
  if (point === "before 1" || point === "calling 1") {
    await breakPoint(booking, "charge to prepare");
    const charge = bytes({ ride: booking, cents });
    const askedAt = os.uptime(); // runs through suspend
    const aboutToCall = "CALL retrysafe.about_to_call($1, $2, $3, 'charge', $4, $5, $6, $7, $8)";
    const call = await db.ask(aboutToCall, ...me, point, charge, ...PROMISE);
    if (call.decision !== "send") return refusal(call.decision);
    point = call.recovery_point;
    try {
      await breakPoint(booking, "charge to send");
      if ((os.uptime() - askedAt) * 1000 >= call.send_within_ms) throw new NotSent();
      outputs.push(await chargeCard(booking, call.call_key, charge));
    } catch (error) {
      if (error instanceof Declined) {
        const declined = answer(402, { error: "the card was declined" });
        await db.askAgain("CALL retrysafe.settle($1, $2, 'completed', $3, $4, $5, $6)", ...me, ...declined, point);
        return declined;
      }
      if (!(error instanceof NotSent)) throw error;
      await db.askAgain("SELECT retrysafe.call_not_sent($1, $2, $3)", ...me, point);
      return refusal("failed");
    }
    point = (await db.askAgain("CALL retrysafe.advance($1, $2, $3, $4)", ...me, point, bytes(outputs[1]))).recovery_point;
  }
  const [ride, charge] = outputs;
  const receipt = `${cents} cents for ${place}, charge ${charge}`;
  const done = answer(201, { ride, charge, receipt });
  await db.transaction(me, async () => {
    await breakPoint(booking, "receipt begun");
    await db.ask("UPDATE ride SET charge = $2 WHERE id = $1", ride, charge);
    const mail = [JSON.stringify({ ride: booking, text: receipt }), `${PROVIDER}/receipts`, booking];
    await db.ask("SELECT retrysafe.stage_json('receipt', $1, destination => $2, name => $3)", ...mail);
    await db.ask(SETTLE_IN, ...me, ...done, point);
    await breakPoint(booking, "receipt to commit");
  });
  await breakPoint(booking, "answer committed");
  return done;
}

const app = express();
app.post("/rides", express.raw({ type: () => true }), async (request, response) => {
  const key = request.get("idempotency-key")?.replaceAll('"', "");
  if (!key || !request.get("authorization")) return response.status(400).json({ code: "idempotency_key_missing" });
  const db = await new Database().connect();
  try {
    const [status, headers, body, isReplay] = await createRide(db, Buffer.from(request.get("authorization")), key, request.body);
    if (isReplay) response.set("idempotent-replayed", "true");
    response.status(status).set(Object.fromEntries(headers)).send(body);
  } finally {
    db.client.end().catch(() => {});
  }
});

new Database().connect().then(async ({ client }) => {
  const tables = fs.readFileSync(`${__dirname}/../ride-payments/tables.sql`, "utf8");
  await client.query(`BEGIN; SELECT pg_advisory_xact_lock(7433); ${tables} COMMIT`);
  await client.end();
  const [host, port] = LISTEN.split(":");
  app.listen(Number(port), host);
});
