"""How is a ride booked, charged and receipted once, with SQL functions only? FastAPI and psycopg 3; README.md says how to run it."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import socket
import time
from urllib.parse import urlsplit

import psycopg
from fastapi import FastAPI, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from break_points import break_point
from database import DATABASE_URL, with_database

PROVIDER = urlsplit(os.environ.get("PROVIDER", "http://127.0.0.1:4000"))
LEASE_MS = int(os.environ.get("LEASE_MS", 60_000))
LEASE_MAX_MS, DEADLINE_MS = min(LEASE_MS * 3, 600_000), min(LEASE_MS // 3, 20_000)
MARGIN_MS = int(os.environ.get("PROVIDER_MARGIN_MS", 300_000))
REMEMBERS_MS = int(os.environ.get("PROVIDER_REMEMBERS_MS", 86_400_000)) or None  # None: the provider takes no key
FLOW = "create_ride/1"
JSON = [["content-type", "application/json"]]
REFUSALS = {"unknown": (409, "outcome_unknown"), "mismatch": (422, "idempotency_key_reused"), "failed": (503, "handler_failed")}
SCOPE = "retrysafe.scope('account', retrysafe.credential_digest(%s))"
SETTLE_IN = "SELECT retrysafe.settle_in(%s, %s, 'completed', %s, %s, %s, %s)"


class NotSent(Exception):
    """Not a byte has left: connection refused, name not found, or too late."""


def refusal(decision):
    status, code = REFUSALS.get(decision, (409, "request_in_progress"))
    return status, [*JSON, ["retry-after", "1"]], json.dumps({"status": status, "code": code}).encode(), decision


def charge_card(booking, key, charge):
    """Sends the charge once. The status decides: 201 with the charge, or 402 if the card is declined."""
    provider = http.client.HTTPConnection(PROVIDER.hostname, PROVIDER.port, timeout=DEADLINE_MS / 1000)
    try:
        provider.connect()
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise NotSent() from error
    provider.request("POST", "/charges", charge, {"idempotency-key": key})
    answer = provider.getresponse()
    told = json.loads(answer.read())
    break_point(booking, "charge answered")
    if answer.status not in (201, 402):  # a 5xx, and "this key is in use", say nothing about the charge
        raise RuntimeError(f"the provider answered {answer.status}")
    return answer.status, told["charge"] if answer.status == 201 else None


def create_ride(db, account, key, body):
    """Status, headers and body of the answer, and what decided it."""
    owner, request = random.getrandbits(62), json.loads(body)
    try:
        begun = db.ask(f"CALL retrysafe.begin({SCOPE}, %s, retrysafe.fingerprint('POST', '/rides', %s),"
                       " ARRAY[%s], lease_ms => %s, owner => %s, method => 'POST', path => '/rides')",
                       account, key, body, FLOW, LEASE_MS, owner)
    except psycopg.OperationalError:  # nothing was sent; if the begin was applied, it is taken back
        db.connect()
        db.ask(f"SELECT retrysafe.withdraw(retrysafe.record_id({SCOPE}, %s), %s)", account, key, owner)
        return refusal("failed")
    if begun.decision == "replay":
        return begun.status, begun.headers, begun.body, "replay"
    if begun.decision != "execute":
        return refusal(begun.decision)
    booking, me, point = request["booking"], (begun.id, begun.fence), begun.recovery_point
    try:
        break_point(booking, "request begun")
        if point is None:
            point = db.ask_again("CALL retrysafe.start(%s, %s, %s, %s)", *me, FLOW, body)[0]
        return *run_phases(db, me, point, [json.loads(output) for output in begun.outputs or []], request), "executed"
    except Exception:  # it may be tried again; while a call may be in flight, the record knows better
        with contextlib.suppress(psycopg.Error):
            db.ask_again("CALL retrysafe.settle(%s, %s, 'retryable')", *me)
        return refusal("failed")


def run_phases(db, me, point, outputs, request):
    booking, place, cents = request["booking"], request["place"], request["cents"]
    if point == "before 0":
        with db.connection.transaction():
            db.ask("SELECT retrysafe.guard(%s, %s)", *me)
            break_point(booking, "ride begun")
            insert = "INSERT INTO ride (booking, place, cents) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING id"
            ride = db.ask(insert, booking, place, cents)
            if ride is None:
                answer = 409, JSON, b'{"error": "this booking has a ride already"}'
                db.ask(SETTLE_IN, *me, *answer, point)
                return answer
            db.connection.execute("INSERT INTO ride_event (ride, what) VALUES (%s, 'created')", (ride.id,))
            moved = db.ask("SELECT retrysafe.advance_in(%s, %s, %s, %s)", *me, point, json.dumps(ride.id).encode())
            break_point(booking, "ride to commit")
        point, outputs = moved[0], [ride.id]
    if point in ("before 1", "calling 1"):
        break_point(booking, "charge to prepare")
        charge, asked_at = json.dumps({"ride": booking, "cents": cents}).encode(), time.clock_gettime(time.CLOCK_BOOTTIME)
        call = db.ask("CALL retrysafe.about_to_call(%s, %s, %s, 'charge', %s, %s, %s, %s, %s)",
                      *me, point, charge, REMEMBERS_MS, DEADLINE_MS, MARGIN_MS, LEASE_MAX_MS)
        if call.decision != "send":
            return refusal(call.decision)[:3]
        point = call.recovery_point
        try:
            break_point(booking, "charge to send")
            if (time.clock_gettime(time.CLOCK_BOOTTIME) - asked_at) * 1000 >= call.send_within_ms:
                raise NotSent()
            status, charged = charge_card(booking, call.call_key, charge)
        except NotSent:
            db.ask_again("SELECT retrysafe.call_not_sent(%s, %s, %s)", *me, point)
            return refusal("failed")[:3]
        if status == 402:
            answer = 402, JSON, b'{"error": "the card was declined"}'
            db.ask_again("CALL retrysafe.settle(%s, %s, 'completed', %s, %s, %s, %s)", *me, *answer, point)
            return answer
        point = db.ask_again("CALL retrysafe.advance(%s, %s, %s, %s)", *me, point, json.dumps(charged).encode())[0]
        outputs.append(charged)
    with db.connection.transaction():
        db.ask("SELECT retrysafe.guard(%s, %s)", *me)
        break_point(booking, "receipt begun")
        text = f"{cents} cents for {place}, charge {outputs[1]}"
        db.connection.execute("UPDATE ride SET charge = %s WHERE id = %s", (outputs[1], outputs[0]))
        mail = json.dumps({"ride": booking, "text": text}), PROVIDER.geturl() + "/receipts", booking
        db.ask("SELECT retrysafe.stage_json('receipt', %s, destination => %s, name => %s)", *mail)
        answer = 201, JSON, json.dumps({"ride": outputs[0], "charge": outputs[1], "receipt": text}).encode()
        db.ask(SETTLE_IN, *me, *answer, point)
        break_point(booking, "receipt to commit")
    break_point(booking, "answer committed")
    return answer


app = FastAPI()
with psycopg.connect(DATABASE_URL) as connection:
    connection.execute("SELECT pg_advisory_xact_lock(7433)")
    connection.execute((pathlib.Path(__file__).parent / "../ride-payments/tables.sql").read_text())


@app.post("/rides")
async def book(request: Request, idempotency_key: str = Header(None), authorization: str = Header(None)):
    if not idempotency_key or not authorization:
        return Response('{"code": "idempotency_key_missing"}', 400)
    asked = authorization.encode(), idempotency_key.strip('"'), await request.body()
    status, headers, answer, decision = await run_in_threadpool(with_database, create_ride, *asked)
    replayed = {"idempotent-replayed": "true"} if decision == "replay" else {}
    return Response(answer, status, dict(headers) | replayed)
