"""What the Redis store knows before it connects: its address, with the password out of everybody's sight."""

import pytest

from app.observation.redis import SECONDS, Address, RedisStore
from app.observation.store import StoreError
from tests.support.redis_server import free_port

PASSWORD = "hunter2:@/"  # noqa: S105 - of nobody
URL = "redis://user:hunter2%3A%40%2F@127.0.0.1:6390/3"


def test_an_address_is_read() -> None:
    """User, password, host, port and number of the database, as the URL has them."""
    options = Address.parse(URL).options
    assert options == {"username": "user", "password": PASSWORD, "host": "127.0.0.1", "port": 6390, "db": 3}


@pytest.mark.parametrize("url", ["unix:///run/redis/s?db=1", "rediss://localhost?ssl_ca_certs=/etc/ca.pem"])
def test_sockets_and_tls_are_addresses_too(url: str) -> None:
    """With the options that they need."""
    assert "connection_class" in Address.parse(url).options


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "it must be"),
        ("http://hunter2@localhost", "it must be"),
        ("redis://:hunter2@localhost:hunter2", "it must be"),
        ("redis://localhost?socket_timeout=60&hunter2=1", "not known"),
        ("redis://localhost?retry_on_timeout=yes", "not known"),
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url: str, words: str) -> None:
    """The error says what is wrong and has nothing of the URL, in which a password may stand anywhere."""
    with pytest.raises(ValueError, match=words) as caught:
        Address.parse(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_address_does_not_show_its_password() -> None:
    """Neither as itself nor in a text that goes through it."""
    address = Address.parse(URL)
    assert "hunter2" not in repr(address)
    assert address.mask(f"ERR AUTH {PASSWORD} failed") == "ERR AUTH *** failed"
    assert Address.parse("redis://localhost").mask("as it was") == "as it was"


def test_a_client_waits_a_second_and_repeats_nothing() -> None:
    """The library's own default would send a batch again, and count it twice."""
    client = Address.parse(URL).connect()
    options = client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (SECONDS, SECONDS)
    assert options["retry"].get_retries() == 0
    client.close()


def test_a_redis_that_is_not_there_is_a_store_error() -> None:
    """It names the place, and not the password."""
    with pytest.raises(StoreError, match=r"the ledger's Redis cannot be used.*refused") as caught:
        RedisStore(Address.parse(f"redis://:hunter2@127.0.0.1:{free_port()}"))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
