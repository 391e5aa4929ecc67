"""The installation's signing key, and the check of a signed receipt.

The key is derived from the installation key with HKDF (RFC 5869), under a label of its own, so that nothing else that
is made from the installation key (cohort keys) says anything about it. Ed25519 (RFC 8032) gives one signature for one
receipt: signing the same thing again gives the same bytes.

A signature tells that whoever holds the key made the receipt as it is. Whose key that is, the signed receipt cannot
tell: `verify` takes the keys that the caller trusts.
"""

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Never

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import ValidationError

from app.errors import InvalidReceipt
from app.receipts.document import ALGORITHM, FORMAT, LARGEST_INTEGER, Receipt, Signature, SignedReceipt, signed_bytes

LABEL: Final = b"reprise-receipt/1 ed25519"
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
MAX_BYTES: Final = 1024 * 1024
"""A longer text is no receipt."""

_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Verified:
    """A receipt that is as it was signed, the key that signed it, and whether that key is one of the trusted."""

    receipt: Receipt
    key: bytes
    trusted: bool


class Signer:
    """Signs receipts with the key that belongs to an installation key. ``public_key`` is its public half, 32 bytes."""

    def __init__(self, installation_key: bytes) -> None:
        seed = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=LABEL).derive(installation_key)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()

    def sign(self, receipt: Receipt) -> SignedReceipt:
        """The receipt with its signature."""
        value = self._key.sign(signed_bytes(receipt.model_dump(mode="json")))
        signature = Signature(algorithm=ALGORITHM, key=to_base64(self.public_key), value=to_base64(value))
        return SignedReceipt(receipt=receipt, signature=signature)


def verify(text: bytes, trusted: Collection[bytes]) -> Verified:
    """Check a signed receipt in JSON, in any layout. Raises InvalidReceipt and nothing else, whatever the text is.

    Refused besides a wrong signature: anything that two readers could read differently (members given twice, numbers
    that are no integers or too large for a double, base64 that is not in its one canonical form), and other formats.
    """
    try:
        document = _members(_read(text), "file", {"receipt", "signature"})
        stated = _object(document["receipt"], "receipt")
        if stated.get("format") != FORMAT:
            raise InvalidReceipt(f"its format is {_shown(stated.get('format'))}, not '{FORMAT}'", param="receipt")
        signature = _members(document["signature"], "signature", {"algorithm", "key", "value"})
        key = _check_signature(signature, signed_bytes(stated))
        receipt = Receipt.model_validate_json(json.dumps(stated))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidReceipt(f"{_shown(where)}: {first['msg']}", param="receipt") from exc
    except UnicodeError as exc:
        raise InvalidReceipt("it is not UTF-8", param="file") from exc
    except RecursionError as exc:
        raise InvalidReceipt("it is nested too deeply", param="file") from exc
    return Verified(receipt, key, key in trusted)


def to_base64(raw: bytes) -> str:
    """Bytes in base64 (RFC 4648, section 4), with padding."""
    return base64.b64encode(raw).decode()


def from_base64(text: str, length: int) -> bytes | None:
    """The bytes of a text in canonical base64, None where it is not, or not of ``length`` bytes."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return raw if len(raw) == length and to_base64(raw) == text else None


def _check_signature(signature: dict[str, Any], signed: bytes) -> bytes:
    if signature["algorithm"] != ALGORITHM:
        said = _shown(signature["algorithm"])
        raise InvalidReceipt(f"its algorithm is {said}, not '{ALGORITHM}'", param="signature")
    key = _bytes(signature, "key", KEY_BYTES)
    value = _bytes(signature, "value", SIGNATURE_BYTES)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(value, signed)
    except (InvalidSignature, ValueError) as exc:
        raise InvalidReceipt(
            "it does not fit the receipt: one of the two was changed, or another key signed", param="signature"
        ) from exc
    return key


def _bytes(signature: dict[str, Any], name: str, length: int) -> bytes:
    text = signature[name]
    raw = from_base64(text, length) if isinstance(text, str) else None
    if raw is None:
        raise InvalidReceipt(f"'{name}' is not {length} bytes in canonical base64", param="signature")
    return raw


def _read(text: bytes) -> object:
    if len(text) > MAX_BYTES:
        raise InvalidReceipt(f"it is over {MAX_BYTES} bytes", param="file")
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_once,
            parse_int=_integer,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except json.JSONDecodeError as exc:
        raise InvalidReceipt(f"it is not JSON: {exc.msg} at character {exc.pos}", param="file") from exc


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise InvalidReceipt(f"the member {_shown(name)} is given twice", param="file")
        members[name] = value
    return members


def _integer(text: str) -> int:
    # The length comes first: reading a very long number takes long, and Python refuses it with an error of its own.
    if len(text) > _SHOWN or text == "-0" or abs(number := int(text)) > LARGEST_INTEGER:
        _refuse_number(text)
    return number


def _refuse_number(text: str) -> Never:
    raise InvalidReceipt(f"the number {_shown(text)} is no integer that every reader holds", param="file")


def _object(value: object, part: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidReceipt("it is no JSON object", param=part)
    return value


def _members(value: object, part: str, names: set[str]) -> dict[str, Any]:
    members = _object(value, part)
    if members.keys() != names:
        odd = min(members.keys() ^ names)
        said = "is missing" if odd in names else "is unknown"
        raise InvalidReceipt(f"the member {_shown(odd)} {said}", param=part)
    return members


def _shown(value: object) -> str:
    """A value from the text, short enough for a line."""
    return repr(value if isinstance(value, int | None) else str(value)[:_SHOWN])
