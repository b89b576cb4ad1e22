"""The string formats that are enforced, each as a pattern whose every match has the format.

Some patterns allow less than the format does, where the rest would need more than a regular
expression: leap seconds, and lower-case signs in a time.
"""

from __future__ import annotations

from typing import Any

_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = (
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    rf"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DURATION = (
    r"P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?"
    r"|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)(?:T{time})?|T{time})"
).replace(
    "{time}",
    r"(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)",
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# At most 4 labels of 63 signs, so that the whole stays below the limit of 253.
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,2}}\.[A-Za-z](?:[A-Za-z0-9-]{{0,58}}[A-Za-z0-9])?"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,21}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,1}}@{_HOSTNAME}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [
        rf"(?:{_GROUP}:){{7}}{_GROUP}",
        rf"(?:{_GROUP}:){{1,7}}:",
        *(rf"(?:{_GROUP}:){{1,{7 - n}}}(?::{_GROUP}){{1,{n}}}" for n in range(1, 7)),
        rf":(?::{_GROUP}){{1,7}}",
        "::",
    ]
)
_UUID = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
_URI_SIGN = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI = (
    rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOSTNAME}(?::[0-9]{{1,5}})?(?:/{_URI_SIGN}*)*"
    rf"(?:\?(?:{_URI_SIGN}|[/?])*)?(?:#(?:{_URI_SIGN}|[/?])*)?"
)

FORMATS = {
    "date": _DATE,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "time": _TIME,
    "uri": _URI,
    "uuid": _UUID,
}


def apply_format(schema: dict[str, Any]) -> None:
    """Turn `format` into patterns, in place."""
    name = schema.pop("format", None)
    if name is None:
        return
    pattern = f"^(?:{FORMATS[name]})$"
    if "pattern" in schema:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": pattern}]
    else:
        schema["pattern"] = pattern
