"""Keys, scopes, downstream keys and fingerprints once more, in another language: what docs/vectors.md says is enough to write it.

Usage: second_implementation.py FOLDER, where FOLDER holds keys.json, scopes.json, downstream_keys.json and fingerprints.json.
"""

import ipaddress
import json
import re
import sys
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from pathlib import Path

SCHEME = bytes([2])
TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"


def count(n):
    return n.to_bytes(8, "big")


def part(data):
    return count(len(data)) + data


# ---------------------------------------------------------------- keys and names


def key_of(lines, syntax):
    if len(lines) != 1:
        return None
    value = lines[0].strip(" \t")
    if quoted := re.fullmatch(r'"((?:[ !#-\[\]-~]|\\["\\])*)" *(;.*)?', value):
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif syntax != "quoted" and re.fullmatch(r"[!#-+\--:<-\[\]-~]+", value):
        key = value
    else:
        return None
    if syntax == "uuid" and not re.fullmatch(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", key):
        return None
    return key if 1 <= len(key) <= 255 else None


def key_digest(key):
    return sha256(b"retrysafe key v1\0" + key.encode()).digest()


def encoded_scope(parts):
    fields = [field.encode() for pair in parts for field in pair]
    return b"".join(str(len(field)).encode() + b":" + field + b"," for field in fields)


def record_name(scope, key):
    return sha256(b"retrysafe id v1\0" + len(scope).to_bytes(8, "little") + scope + key_digest(key))


def downstream_key(record, birth, phase):
    return sha256(b"retrysafe call\0" + record + count(birth) + phase.encode()).hexdigest()[:32]


# ---------------------------------------------------------------- canonical JSON


class NoCanonicalForm(Exception):
    pass


def number(text):
    try:
        value = float(text)
        shortest = Decimal(repr(value))
    except (OverflowError, InvalidOperation) as error:
        raise NoCanonicalForm from error
    if not shortest.is_finite() or Decimal(text) != shortest or (value == 0 and text.startswith("-")):
        raise NoCanonicalForm
    sign, digits, exponent = shortest.normalize().as_tuple()
    digits = "".join(map(str, digits))
    point = len(digits) + exponent
    if value == 0:
        spelt = "0"
    elif len(digits) <= point <= 21:
        spelt = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        spelt = digits[:point] + "." + digits[point:]
    elif -6 < point <= 0:
        spelt = "0." + "0" * -point + digits
    else:
        spelt = digits[0] + ("." + digits[1:] if digits[1:] else "") + f"e{point - 1:+d}"
    return Spelt(("-" if sign else "") + spelt)


class Spelt(str):
    """A number in its one spelling, to be told from a text."""


LEFT_OUT = object()


def pairs(items):
    if len(dict(items)) != len(items):
        raise NoCanonicalForm
    return dict(items)


def refuse(_):
    raise NoCanonicalForm


def picked(value, path, rules):
    """The value without what does not count; LEFT_OUT if nothing of it does."""
    if path in rules["exclude"]:
        return LEFT_OUT
    inside = any(path == p or path.startswith(p + "/") for p in rules["include"]) or not rules["include"]
    if not inside and not any(p.startswith(path + "/") for p in rules["include"]):
        return LEFT_OUT
    if isinstance(value, dict):
        kept = {k: picked(v, f"{path}/{k}", rules) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not LEFT_OUT}
    if isinstance(value, list):
        kept = [picked(v, f"{path}/{i}", rules) for i, v in enumerate(value)]
        return [v for v in kept if v is not LEFT_OUT]
    return value if inside else LEFT_OUT


def written(value):
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return "{" + ",".join(f"{written(k)}:{written(v)}" for k, v in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return value if isinstance(value, Spelt) else json.dumps(value, ensure_ascii=False)


def canonical(body, rules):
    try:
        value = json.loads(
            body.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=refuse, object_pairs_hook=pairs
        )
        return written(picked(value, "", rules)).encode("utf-8")
    except (ValueError, NoCanonicalForm, RecursionError):
        return None


# ---------------------------------------------------------------- fingerprints


def host_name(authority):
    host = authority.rsplit("@", 1)[-1]
    if six := re.fullmatch(r"\[(.*)\](:\d*)?", host):
        address = ipaddress.ip_address(six[1])
        return "localhost" if address.is_loopback else f"[{address.compressed}]"
    host = re.sub(r":\d*$", "", host).removesuffix(".").lower()
    if re.fullmatch(r"127(\.\d+){3}", host):
        return "localhost"
    return host


def form(content_type, body):
    """The parts of a form that every server reads alike, or None."""
    named = re.fullmatch(rb'(?i)multipart/form-data *; *boundary=(?:"([^"]+)"|(' + TOKEN + rb"))", content_type)
    if not named:
        return None
    delimiter = b"--" + (named[1] or named[2])
    ahead, *pieces = body.split(delimiter)
    if ahead or not pieces or pieces[-1] not in (b"--", b"--\r\n"):
        return None
    parts = []
    for piece in pieces[:-1]:
        head, empty_line, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        if not (piece.startswith(b"\r\n") and piece.endswith(b"\r\n") and empty_line):
            return None
        if not all(re.fullmatch(TOKEN + rb":[^\x00-\x08\x0a-\x1f\x7f]*", line) for line in lines):
            return None
        parts.append((head, content.removesuffix(b"\r\n")))
    ending = b"\r\n" if pieces[-1] == b"--\r\n" else b""
    return part(b"form") + count(0) + part(ending) + count(len(parts)) + b"".join(
        part(head) + part(content) for head, content in parts
    )


def rules_id(rules, groups):
    lists = [sorted(rules["headers"]), sorted(rules["include"]), sorted(rules["exclude"])]
    text = part(b"retrysafe fingerprint rules") + part(SCHEME)
    for names in lists:
        text += count(len(names)) + b"".join(part(name.encode()) for name in names)
    text += part((1 << 20).to_bytes(4, "big")) + part((16 << 20).to_bytes(4, "big"))
    if rules["without_host"]:
        text += part(b"without host")
    else:
        text += part(b"host") + count(len(groups))
        for group in groups:
            text += count(len(group)) + b"".join(part(name.encode()) for name in group)
    text += part(b"raw" if rules["raw_bodies"] else b"canonical") + count(0)
    return sha256(text).digest()[:8]


def fingerprint(request):
    rules = request["rules"]
    aliases = sorted({host_name(name) for name in rules["host_aliases"]})
    groups = [aliases] if len(aliases) > 1 else []
    host = host_name(request["authority"])
    host = "" if rules["without_host"] else aliases[0] if host in aliases else host
    values = lambda name: [value.encode() for n, value in request["headers"] if n.lower() == name]
    types = [value.split(b";")[0].strip().lower() for value in values("content-type")]
    codings = [c.strip().lower() for value in values("content-encoding") for c in value.split(b",")]
    codings = [coding for coding in codings if coding not in (b"", b"identity")]
    body = request["body"]
    body = body["text"].encode() if "text" in body else bytes.fromhex(body["hex"])

    identity = rules_id(rules, groups)
    text = part(b"retrysafe fingerprint") + part(SCHEME) + part(identity) + part(request["method"].encode())
    text += part(host.encode()) + part(request["target"].encode()) + part(b",".join(types)) + part(b",".join(codings))
    text += count(len(rules["headers"]))
    for name in sorted(rules["headers"]):
        text += part(name.encode()) + count(len(values(name))) + b"".join(map(part, values(name)))

    is_readable = not codings and not rules["raw_bodies"]
    is_json = len(types) == 1 and (types[0] == b"application/json" or types[0].endswith(b"+json"))
    spelt = canonical(body, rules) if is_json and is_readable else None
    if any(kind.startswith(b"multipart/") for kind in types):
        read = form(values("content-type")[0], body) if is_readable and len(types) == 1 else None
        raw = part(b"raw multipart") + count(len(types)) + b"".join(map(part, values("content-type")))
        text += read if read is not None else raw + part(b"raw") + part(body)
    elif spelt is not None:
        text += part(b"canonical") + part(spelt)
    else:
        text += part(b"raw") + part(body)
    return identity, sha256(text).digest()


# ---------------------------------------------------------------- agreement


def main(folder):
    names = ("keys", "scopes", "downstream_keys", "fingerprints")
    vectors = {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in names}
    wrong = []
    for row in vectors["keys"]:
        for syntax in ("lenient", "quoted", "uuid"):
            key, wanted = key_of(row["lines"], syntax), row[syntax]
            seen = {"key": key, "sha256": key_digest(key).hex()} if key else None
            if seen != (None if "refused" in wanted else wanted):
                wrong.append((row["lines"], syntax, seen))
    for row in vectors["scopes"]:
        scope = encoded_scope(row["parts"])
        if scope.decode() != row["encoded"] or record_name(scope, row["key"]).hexdigest() != row["sha256"]:
            wrong.append((row["parts"], scope))
    for row in vectors["downstream_keys"]:
        key = downstream_key(bytes.fromhex(row["record"]), int(row["birth"]), row["phase"])
        if key != row["downstream_key"]:
            wrong.append((row["says"], key))
    for row in vectors["fingerprints"]:
        identity, digest = fingerprint(row)
        if (identity.hex(), digest.hex()) != (row["rules"]["id"], row["sha256"]):
            wrong.append((row["says"], identity.hex(), digest.hex()))
    for what in wrong:
        print("disagrees:", *what)
    if not wrong:
        print(sum(map(len, vectors.values())), "vectors agree")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
