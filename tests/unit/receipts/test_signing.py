"""Signatures: what was signed is found valid in any layout, and nothing that was changed is."""

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidReceipt
from app.receipts.document import Receipt, canonical, signed_bytes
from app.receipts.signing import MAX_BYTES, Signer, from_base64, to_base64, verify
from tests.unit.receipts.made import INSTALLATION_KEY, STRANGERS_KEY, signed, to_json

OURS = Signer(INSTALLATION_KEY).public_key
SIGNED = signed()
TEXT = to_json(SIGNED)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANY_JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def forged(change: dict[str, Any], *, key: bytes = STRANGERS_KEY) -> dict[str, Any]:
    """The receipt with members changed, signed with all the skill of somebody who has another key."""
    stated = SIGNED["receipt"] | change
    seed = hmac.digest(hmac.digest(bytes(32), key, "sha256"), b"reprise-receipt/1 ed25519\x01", "sha256")
    value = Ed25519PrivateKey.from_private_bytes(seed).sign(signed_bytes(stated))
    signature = {"algorithm": "ed25519", "key": to_base64(Signer(key).public_key), "value": to_base64(value)}
    return {"receipt": stated, "signature": signature}


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every member and element below a value."""
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inner:
        yield (*path, name)
        yield from places(below, (*path, name))


PLACES = list(places(SIGNED))


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def refusal(text: bytes) -> tuple[str | None, str]:
    """Part and message of the refusal."""
    with pytest.raises(InvalidReceipt) as caught:
        verify(text, [OURS])
    return caught.value.param, caught.value.message


def test_what_was_signed_is_valid() -> None:
    """The receipt comes back as it was, with the key that signed it and that it is trusted."""
    verified = verify(TEXT, [OURS])
    assert verified.receipt == Receipt.model_validate_json(json.dumps(SIGNED["receipt"]))
    assert (verified.key, verified.trusted) == (OURS, True)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SIGNED, indent=2),
        json.dumps(SIGNED, sort_keys=True, ensure_ascii=True),
        json.dumps({"signature": SIGNED["signature"], "receipt": dict(reversed(SIGNED["receipt"].items()))}),
    ],
)
def test_the_layout_of_the_file_does_not_matter(text: str) -> None:
    """Indented, sorted or escaped, by whatever tool it passed: the signature is over the values."""
    assert verify(text.encode(), [OURS]).trusted


def test_signing_again_gives_the_same_bytes() -> None:
    """One receipt has one signature."""
    assert to_json(signed()) == TEXT


def test_every_single_bit_counts() -> None:
    """No receipt with one bit flipped anywhere, its signature and its key included, is found intact."""
    valid = []
    for place in range(8 * len(TEXT)):
        flipped = bytearray(TEXT)
        flipped[place // 8] ^= 1 << place % 8
        try:
            verify(bytes(flipped), [OURS])
        except InvalidReceipt:
            continue
        valid.append(place)
    assert not valid


@given(path=st.sampled_from(PLACES), value=ANY_JSON)
def test_every_member_counts(path: tuple[str | int, ...], value: object) -> None:
    """No receipt with any member or element replaced by something else is found intact."""
    changed = copy.deepcopy(SIGNED)
    before = at(changed, path)
    at(changed, path[:-1])[path[-1]] = value
    if type(before) is type(value) and before == value:
        verify(json.dumps(changed).encode(), [OURS])
    else:
        refusal(json.dumps(changed).encode())


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_no_member_can_go(path: tuple[str | int, ...]) -> None:
    """No receipt that lacks a member or an element is found intact."""
    changed = copy.deepcopy(SIGNED)
    del at(changed, path[:-1])[path[-1]]
    refusal(to_json(changed))


@pytest.mark.parametrize("path", [(), *(path for path in PLACES if isinstance(at(SIGNED, path), dict))])
def test_no_member_can_come(path: tuple[str | int, ...]) -> None:
    """No receipt with a member more, at any level, is found intact."""
    changed = copy.deepcopy(SIGNED)
    at(changed, path)["note"] = "harmless"
    refusal(to_json(changed))


@given(st.integers(0, len(TEXT) - 1))
def test_a_truncated_file_is_refused(length: int) -> None:
    """A file that broke off anywhere is named as no JSON."""
    part, message = refusal(TEXT[:length])
    assert part == "file"
    assert message.startswith("it is not JSON")


@given(st.binary() | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_text_is_there_is_one_kind_of_error(text: bytes) -> None:
    """Any bytes and any JSON are refused as an invalid receipt, never with another exception."""
    refusal(text)


@given(signature=ANY_JSON, receipt=ANY_JSON)
def test_whatever_the_parts_are_there_is_one_kind_of_error(signature: object, receipt: object) -> None:
    """The same where the text has the right outline."""
    stated = {"format": "reprise-receipt/1", "more": receipt}
    refusal(json.dumps({"receipt": receipt, "signature": signature}).encode())
    refusal(json.dumps({"receipt": stated, "signature": signature}).encode())
    refusal(json.dumps({"receipt": stated, "signature": SIGNED["signature"]}).encode())


def test_another_key_is_told_from_the_trusted_one() -> None:
    """A forger's receipt is intact, under the forger's key, and not trusted."""
    verified = verify(to_json(forged({"coresident_peak": 1, "mode": "hardened"})), [OURS])
    assert verified.key == Signer(STRANGERS_KEY).public_key
    assert not verified.trusted


def test_a_signature_of_another_key_under_the_trusted_keys_name_is_refused() -> None:
    """Naming the trusted key does not help a forger who does not have it."""
    fake = forged({"coresident_peak": 1})
    fake["signature"]["key"] = to_base64(OURS)
    assert refusal(to_json(fake))[0] == "signature"


def test_a_signature_over_the_receipt_alone_is_refused() -> None:
    """The domain comes before what is signed: a signature made for another purpose is none over a receipt."""
    seed = hmac.digest(hmac.digest(bytes(32), STRANGERS_KEY, "sha256"), b"reprise-receipt/1 ed25519\x01", "sha256")
    fake = forged({})
    value = Ed25519PrivateKey.from_private_bytes(seed).sign(canonical(SIGNED["receipt"]))
    fake["signature"]["value"] = to_base64(value)
    assert refusal(to_json(fake))[0] == "signature"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "reprise-receipt/2"}, "its format is 'reprise-receipt/2', not 'reprise-receipt/1'"),
        ({"format": 1}, "its format is 1, not 'reprise-receipt/1'"),
        ({"status": "200"}, "'status': Input should be a valid integer"),
        ({"status": True}, "'status': Input should be a valid integer"),
        ({"waited_us": -1}, "'waited_us': Input should be greater than or equal to 0"),
        ({"mitigations": [{"mitigation": "eager", "status": "promised", "reason": None}]}, "'mitigations.0.status'"),
        ({"intervals_source": "hearsay"}, "'intervals_source'"),
        ({"finished": "2026-09-21"}, "'finished'"),
        ({"note": "x"}, "'note': Extra inputs are not permitted"),
    ],
)
def test_a_signed_document_of_another_shape_is_no_receipt(change: dict[str, Any], says: str) -> None:
    """Even under a good signature: a document of another format or with other members is refused, by name."""
    part, message = refusal(to_json(forged(change, key=INSTALLATION_KEY)))
    assert part == "receipt"
    assert message.startswith(says)


def replaced(before: bytes, after: bytes) -> bytes:
    assert TEXT.count(before) == 1
    return TEXT.replace(before, after)


@pytest.mark.parametrize(
    ("text", "part", "says"),
    [
        (replaced(b'"status":200', b'"status":404,"status":200'), "file", "the member 'status' is given twice"),
        (TEXT[:-1] + b',"receipt":{}}', "file", "the member 'receipt' is given twice"),
        (replaced(b'"status":200', b'"status":200.0'), "file", "the number '200.0' is no integer"),
        (replaced(b'"status":200', b'"status":2e2'), "file", "the number '2e2' is no integer"),
        (replaced(b'"status":200', b'"status":NaN'), "file", "the number 'NaN' is no integer"),
        (replaced(b'"status":200', b'"status":-0'), "file", "the number '-0' is no integer"),
        (replaced(b'"status":200', b'"status":9007199254740992'), "file", "the number '9007199254740992' is no"),
        (replaced(b'"status":200', b'"status":' + b"9" * 5000), "file", "the number '999999"),
        (replaced(b'"model":"smollm2"', b'"model":"\\ud800"'), "file", "it is not UTF-8"),
        (replaced(b'"model":"smollm2"', b'"model":"\xff"'), "file", "it is not UTF-8"),
        (b"\xef\xbb\xbf" + TEXT, "file", "it is not JSON"),
        (TEXT.decode().encode("utf-16"), "file", "it is not UTF-8"),
        (TEXT + b" " * MAX_BYTES, "file", f"it is over {MAX_BYTES} bytes"),
        (b"[" * 100_000, "file", "it is nested too deeply"),
        (b"[]", "file", "it is no JSON object"),
        (to_json({"receipt": SIGNED["receipt"]}), "file", "the member 'signature' is missing"),
        (to_json(SIGNED | {"also": 1}), "file", "the member 'also' is unknown"),
        (to_json(SIGNED | {"receipt": []}), "receipt", "it is no JSON object"),
        (to_json(SIGNED | {"signature": None}), "signature", "it is no JSON object"),
    ],
    ids=range(19),
)
def test_what_two_readers_could_read_differently_is_refused(text: bytes, part: str, says: str) -> None:
    """Members given twice, floats, integers that a double cannot hold, other encodings: refused, saying which part."""
    found = refusal(text)
    assert found[0] == part
    assert found[1].startswith(says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"algorithm": "none"}, "its algorithm is 'none', not 'ed25519'"),
        ({"algorithm": "Ed25519"}, "its algorithm is 'Ed25519', not 'ed25519'"),
        ({"algorithm": None}, "its algorithm is None, not 'ed25519'"),
        ({"key": to_base64(OURS[:-1])}, "'key' is not 32 bytes"),
        ({"key": to_base64(OURS + b"x")}, "'key' is not 32 bytes"),
        ({"key": to_base64(OURS).rstrip("=")}, "'key' is not 32 bytes"),
        ({"key": 5}, "'key' is not 32 bytes"),
        ({"value": ""}, "'value' is not 64 bytes"),
        ({"value": SIGNED["signature"]["value"] + "\n"}, "'value' is not 64 bytes"),
        ({"value": SIGNED["signature"]["value"].replace("=", "é")}, "'value' is not 64 bytes"),
        ({"value": to_base64(bytes(64))}, "it does not fit the receipt"),
    ],
)
def test_a_signature_has_one_form(change: dict[str, Any], says: str) -> None:
    """Another algorithm, another length, or base64 in another spelling than the one is refused."""
    part, message = refusal(to_json(SIGNED | {"signature": SIGNED["signature"] | change}))
    assert part == "signature"
    assert message.startswith(says)


def test_base64_has_one_spelling() -> None:
    """The bits that the last letter does not need must be 0, or one signature had several texts."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    text = to_base64(OURS)
    readings = [from_base64(f"{text[:-2]}{letter}=", 32) for letter in alphabet]
    assert [reading for reading in readings if reading is not None and reading == OURS] == [OURS]
    assert len([reading for reading in readings if reading is not None]) == len(alphabet) // 4
    assert base64.b64decode(text) == OURS


def test_the_key_is_the_one_of_rfc_5869_and_stays() -> None:
    """The signing key follows from the installation key by HKDF as anybody can compute it, in every version."""
    pseudorandom = hmac.digest(bytes(hashlib.sha256().digest_size), INSTALLATION_KEY, "sha256")
    seed = hmac.digest(pseudorandom, b"reprise-receipt/1 ed25519" + b"\x01", "sha256")
    assert Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw() == OURS
    assert to_base64(OURS) == "IYirXpPAtgN6C0Ki/PoS1Vidku+NENZ+Jl0ZKzWJWPA="
    assert Signer(STRANGERS_KEY).public_key != OURS


def test_the_signed_bytes_are_those_of_rfc_8785() -> None:
    """Sorted members, no spaces, UTF-8, the shortest escapes: the domain first, so that another tool can check it."""
    document = {"b": [1, None, True, {}], "a": 'é\u2028\x7f"\\/\n\x1f', "A": -5}
    assert signed_bytes(document) == (
        b'reprise-receipt/1\n{"A":-5,"a":"' + "é\u2028\x7f".encode() + b'\\"\\\\/\\n\\u001f","b":[1,null,true,{}]}'
    )
