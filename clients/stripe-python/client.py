"""Does the official SDK for Python get along with the gateway? Exit code 1 and a line per claim
that does not hold. Started by `cargo xtask clients`, which sets the ports."""

import json
import os
import sys
import threading
import time
import urllib.request

import stripe

CHARGES = 10
failed = 0


def client(port, retries):
    base = {"api": f"http://127.0.0.1:{os.environ[port]}"}
    return stripe.StripeClient("sk_test_1", base_addresses=base, max_network_retries=retries)


def create(sdk, params, key=None):
    options = {"idempotency_key": key} if key else {}
    return sdk.v1.charges.create(params, options)


def counts():
    with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['STUB_PORT']}/") as answer:
        return json.load(answer)


def claim(what, holds, seen=None):
    global failed
    print(f"   {'ok ' if holds else 'NOT'} {what}" + (f" ({seen})" if seen else ""), flush=True)
    failed += not holds


def refusal(call):
    try:
        return call()
    except stripe.StripeError as error:
        return error


def in_background(call):
    """Starts a slow call, and comes back when the upstream is working on it."""
    wanted = counts()["executed"] + 1
    result = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    while counts()["begun"] < wanted:
        time.sleep(0.02)
    return lambda: (thread.join(), result[0])[1]


direct, patient, lossy = client("GATEWAY_PORT", 0), client("GATEWAY_PORT", 8), client("CABLE_PORT", 3)

# Automatic retries over a dropped connection.
before = counts()["executed"]
charges = {
    create(lossy, {"amount": 100 + n, "currency": "eur", "source": "tok_visa"}).id
    for n in range(CHARGES)
}
made = counts()["executed"] - before
claim(
    "automatic retries over a dropped connection make one charge each",
    made == CHARGES,
    f"{CHARGES} calls, {made} charges",
)
claim("every call got a charge of its own", len(charges) == CHARGES)

# The same key for another charge.
first = create(direct, {"amount": 499, "currency": "eur"}, "order-1")
again = create(direct, {"amount": 499, "currency": "eur"}, "order-1")
claim("a replay is the same charge", first.id == again.id)
misuse = refusal(lambda: create(direct, {"amount": 500, "currency": "eur"}, "order-1"))
claim(
    "another charge under the key is an IdempotencyError",
    isinstance(misuse, stripe.IdempotencyError),
    type(misuse).__name__,
)

# The same key while the first is running.
slow = {"amount": 1, "currency": "eur", "description": "slow"}
running = in_background(lambda: create(direct, slow, "slow-1"))
in_use = refusal(lambda: create(direct, slow, "slow-1"))
claim(
    "a key in use is a 409 with its code",
    isinstance(in_use, stripe.StripeError)
    and in_use.http_status == 409
    and in_use.error.code == "idempotency_key_in_use",
    type(in_use).__name__,
)
waited = create(patient, slow, "slow-1")
claim("automatic retries wait for it and get its charge", waited.id == running().id)

sys.exit(1 if failed else 0)
