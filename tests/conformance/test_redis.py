"""What only the Redis store promises: gateways that share it, atomic batches, short waits, and what it refuses."""

import datetime as dt
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.determinism.divergence import Verdict
from app.determinism.output import Blocks
from app.observation import redis_scripts
from app.observation.redis import Address, RedisStore
from app.observation.store import (
    RUN_CHARACTERS,
    CohortId,
    Reference,
    Retention,
    Sighting,
    Specimen,
    StoreError,
    StoreVersionError,
)
from tests.support.redis_server import RedisServer, free_port, redis_server

PASSWORD = "correct-horse"  # noqa: S105 - of a server that lives for one test


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests here."""
    with redis_server(tmp_path_factory.mktemp("redis"), port=free_port()) as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """The same, empty."""
    running.empty()
    return running


def store(server: RedisServer, prefix: str = "reprise") -> RedisStore:
    """An open store."""
    return RedisStore(Address.parse(server.url), prefix=prefix)


def cohort(key: str) -> CohortId:
    """A cohort's identity."""
    return CohortId(key, "isolated", "p-0123456789abcdef")


def sighting(key: str = "a", output: str = "o-1", verdict: Verdict | None = None, first: str = "o-1") -> Sighting:
    """One sighting, as large as those of real traffic."""
    reference = Reference(first, Blocks("characters", (b"12345678" * 4,)), "127.0.0.1:8001", 1, 0)
    kept = Specimen(output, "r-0123456789abcdef", "127.0.0.1:8001", 1796030033.25, "client", 1, 0, 60)
    return Sighting(cohort(key), "smollm2", reference, output, verdict, 1796030033.25, kept, "night", "r-1")


def observed(store: RedisStore, key: str = "a") -> int:
    """How often a cohort was seen; 0 where it is not known."""
    found = store.load(cohort(key))
    return found.counts.observed if found is not None else 0


def test_gateways_that_write_at_once_lose_nothing(server: RedisServer) -> None:
    """Eight of them, each with a reference of its own: every count is there, and all learn of one reference."""
    gateways, batches = 8, 25
    told: list[set[str]] = [set() for _ in range(gateways)]
    ready = threading.Barrier(gateways)

    def gateway(number: int) -> None:
        mine = store(server)
        own = f"o-{number}"
        ready.wait()
        for _ in range(batches):
            others = mine.record([sighting("a", own, None, first=own), sighting(f"only-{number}", own, first=own)])
            told[number].add(others[cohort("a")].digest if others else own)
        mine.close()

    threads = [threading.Thread(target=gateway, args=(number,)) for number in range(gateways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    reader = store(server)
    found = reader.load(cohort("a"))
    assert found is not None
    assert found.counts.outputs == {f"o-{number}": batches for number in range(gateways)}
    assert set().union(*told) == {found.reference.digest}
    assert (found.counts.matched, found.counts.diverged) == (batches - 1, (gateways - 1) * batches)
    assert reader.size().cohorts == gateways + 1
    entries = reader.run("night", after=0, limit=10_000)
    assert [each.number for each in entries] == list(range(1, 2 * gateways * batches + 1))
    reader.close()


def test_installations_do_not_mix(server: RedisServer) -> None:
    """Every key begins with the installation's prefix, and another installation sees and forgets none of it."""
    ours, theirs = store(server, "reprise:1"), store(server, "reprise:2")
    ours.record([sighting()])
    with server.admin() as admin:
        assert {str(name).split(":")[1] for name in admin.keys("*")} == {"1", "2"}
        assert all(str(name).startswith("reprise:") for name in admin.keys("*"))
    assert theirs.load(cohort("a")) is None
    assert theirs.size().cohorts == 0
    assert theirs.prune(1e12) == 0
    assert observed(ours) == 1
    ours.close()
    theirs.close()


def test_pruning_leaves_nothing_behind(server: RedisServer) -> None:
    """When all cohorts are gone, so are all their keys, and those of their runs."""
    ours = store(server)
    ours.record([sighting(key, "o-2", Verdict.DIVERGED) for key in ("a", "b")])
    assert ours.prune(1e12) == 4
    with server.admin() as admin:
        left = admin.keys("*")
        assert sorted(map(str, left)) == ["reprise:bytes", "reprise:format", "reprise:number"]
    assert ours.size().bytes == 0
    ours.close()


def test_the_estimate_of_bytes_is_near_the_truth(server: RedisServer) -> None:
    """What retention counts is what Redis takes, within a third."""
    with server.admin() as admin:
        before = admin.info("memory")["used_memory"]
        ours = store(server)
        for start in range(0, 5000, 250):
            ours.record([sighting(f"{number:064x}") for number in range(start, start + 250)])
        taken = admin.info("memory")["used_memory"] - before
    assert ours.size().bytes == pytest.approx(taken, rel=0.33)
    ours.close()


def test_a_full_redis_takes_a_batch_whole_or_not_at_all(server: RedisServer) -> None:
    """Without memory nothing of a batch is written, but reading and forgetting go on; with memory, so does the rest."""
    ours = store(server)
    ours.record([sighting()])
    with server.admin() as admin:
        admin.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(StoreError, match="maxmemory"):
                ours.record([sighting("a", "o-1", Verdict.MATCH), sighting("b")])
            assert (observed(ours), observed(ours, "b"), ours.runs(limit=9)) == (1, 0, [("night", 1)])
            assert ours.prune(1e12) == 2
        finally:
            admin.config_set("maxmemory", "0")
    ours.record([sighting("b")])
    assert observed(ours, "b") == 1
    ours.close()


def test_a_cohort_that_redis_threw_out_begins_anew(server: RedisServer) -> None:
    """Eviction takes single keys; what is left of the others does not count for the new cohort."""
    ours = store(server)
    ours.record([sighting("a", "o-1"), sighting("a", "o-2", Verdict.DIVERGED)])
    with server.admin() as admin:
        for name in admin.keys("reprise:cohort:*"):
            admin.delete(name)
    assert ours.load(cohort("a")) is None
    assert ours.cohorts(limit=9) == []
    ours.record([sighting("a", "o-3", first="o-3")])
    found = ours.load(cohort("a"))
    assert found is not None
    assert found.counts.outputs == {"o-3": 1}
    assert [each.digest for each, _ in ours.specimens(cohort("a"))] == ["o-3"]
    ours.close()


def test_a_run_that_redis_threw_out_is_not_counted_for_ever(server: RedisServer) -> None:
    """Its answers cannot be forgotten one by one any more; when no other is left, the figures begin anew."""
    ours = RedisStore(Address.parse(server.url), Retention(run_answers=2))
    ours.record([sighting()])
    held = ours.size().bytes
    ours.record([sighting()] * 2 + [sighting()._replace(run="day")])
    with server.admin() as admin:
        admin.delete("reprise:run:night")
    assert ours.prune(1796030033.25) == 1
    assert ours.runs(limit=9) == []
    assert ours.size().run_answers == 0
    assert ours.size().bytes < held
    ours.record([sighting()] * 3)
    assert ours.prune(1796030033.25) == 1
    assert ours.size().run_answers == 2
    ours.close()


def test_a_list_of_runs_costs_what_it_shows(server: RedisServer) -> None:
    """However many labels there are, Redis serves nobody else meanwhile, so it looks at those alone that it tells."""
    ours = store(server)
    ours.record([sighting()._replace(run=f"r-{number}") for number in range(500)])
    with server.admin() as admin:
        admin.config_resetstat()
        assert ours.runs(limit=5) == [(f"r-{number}", 1) for number in range(499, 494, -1)]
        calls = admin.info("commandstats")
    assert calls["cmdstat_zcard"]["calls"] == 5
    ours.close()


def test_a_page_of_a_run_reads_what_it_tells(server: RedisServer) -> None:
    """Of a thousand answers with long texts only those are fetched that go onto the page."""
    ours = store(server)
    kept = Specimen("o-1", "r-1", "r", 0.0, text="x" * (RUN_CHARACTERS // 10))
    ours.record([sighting()._replace(specimen=kept) for _ in range(1000)])
    with server.admin() as admin:
        admin.config_resetstat()
        assert len(ours.run("night", after=0, limit=1000)) == 9
        calls = admin.info("commandstats")
    assert calls["cmdstat_hget"]["calls"] == 9
    ours.close()


def test_what_a_caller_writes_does_not_stop_pruning(server: RedisServer) -> None:
    """Nor half a surrogate pair in the identity of a request, which JSON takes and other readers of it refuse."""
    ours = RedisStore(Address.parse(server.url), Retention(run_answers=1))
    ours.record([sighting()._replace(request_id="\ud800"), sighting()._replace(request_id="r-2")])
    assert ours.prune(1796030033.25) == 1
    assert [each.request_id for each in ours.run("night", after=0, limit=9)] == ["r-2"]
    ours.close()


def test_scripts_that_redis_forgot_are_sent_again(server: RedisServer) -> None:
    """As after its restart, or a failover."""
    ours = store(server)
    with server.admin() as admin:
        admin.script_flush()
    ours.record([sighting()])
    assert observed(ours) == 1
    ours.close()


def test_a_hanging_redis_costs_a_second_and_a_batch_is_sent_once(server: RedisServer) -> None:
    """The wait ends, and what Redis finds in its queue when it goes on is one batch, not several."""
    ours = store(server)
    ours.record([sighting()])
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match="cannot be written: Timeout"):
            ours.record([sighting("a", "o-1", Verdict.MATCH)])
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    ours.close()
    again = store(server)
    while observed(again) < 2:
        pass
    again.record([sighting("b")])
    assert observed(again) == 2
    again.close()


def test_one_that_never_answers_is_a_store_error() -> None:
    """A listener that takes the connection and says nothing ends the opening too."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(StoreError, match="cannot be used: Timeout"),
    ):
        RedisStore(Address.parse(f"redis://127.0.0.1:{listener.getsockname()[1]}"))


def test_what_redis_kept_is_there_after_its_restart(tmp_path: Path) -> None:
    """With a journal that it writes at once; the open store fails or goes on, and one that is opened anew goes on."""
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always", port=free_port()) as server:
        ours = store(server)
        ours.record([sighting()])
        server.kill()
        with pytest.raises(StoreError):
            ours.record([sighting("a", "o-1", Verdict.MATCH)])
        ours.close()
        server.start()
        again = store(server)
        assert observed(again) == 1
        again.record([sighting("a", "o-1", Verdict.MATCH)])
        assert observed(again) == 2
        again.close()


def test_a_newer_format_is_refused_and_left_alone(server: RedisServer) -> None:
    """A downgrade never touches what a newer version wrote."""
    store(server).close()
    with server.admin() as admin:
        admin.set("reprise:format", redis_scripts.FORMAT + 1)
        with pytest.raises(StoreVersionError, match=f"has format {redis_scripts.FORMAT + 1}.*upgrade Reprise"):
            store(server)
        assert admin.keys("*") == ["reprise:format"]


def test_keys_of_another_program_are_refused(server: RedisServer) -> None:
    """Under our prefix there is something, and it is not ours."""
    with server.admin() as admin:
        admin.set("reprise:format", "theirs")
        with pytest.raises(StoreError, match="another program"):
            store(server)
        admin.delete("reprise:format")
        admin.lpush("reprise:format", "theirs")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            store(server)


def test_a_row_that_no_version_of_ours_wrote_is_a_store_error(server: RedisServer) -> None:
    """A foreign hand in a cohort raises nothing else."""
    ours = store(server)
    ours.record([sighting()])
    with server.admin() as admin:
        (name,) = admin.keys("reprise:cohort:*")
        admin.hset(name, "blocks", "nonsense")
        with pytest.raises(StoreError, match="not block digests"):
            ours.load(cohort("a"))
        admin.hdel(name, "blocks")
        with pytest.raises(StoreError, match="cannot be read"):
            ours.load(cohort("a"))
    ours.close()


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    """With a line that says so, not with the first key that lies on another node."""
    with (
        # By default the nodes talk on the port plus 10000, which need not exist.
        redis_server(
            tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port()), port=free_port()
        ) as server,
        pytest.raises(StoreError, match="Redis Cluster, which is not supported"),
    ):
        store(server)


def test_a_redis_that_may_throw_cohorts_out_is_named_in_the_log(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It works, and the operator can read why cohorts may vanish."""
    with server.admin() as admin, caplog.at_level(logging.WARNING):
        admin.config_set("maxmemory", "1gb")
        store(server).close()
        assert "noeviction" not in caplog.text
        admin.config_set("maxmemory-policy", "allkeys-lru")
        store(server).close()
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", "0")
    assert "maxmemory-policy allkeys-lru" in caplog.text


def test_a_password_is_used_and_never_told(tmp_path: Path) -> None:
    """The right one opens it; a wrong one, or none, is an error that does not repeat it."""
    with redis_server(tmp_path, "--requirepass", PASSWORD, port=free_port()) as server:
        opened = RedisStore(Address.parse(f"redis://:{PASSWORD}@127.0.0.1:{server.port}"))
        opened.record([sighting()])
        opened.close()
        for url in (server.url, f"redis://:wrong-horse@127.0.0.1:{server.port}"):
            with pytest.raises(StoreError, match="cannot be used") as caught:
                RedisStore(Address.parse(url))
            assert "horse" not in str(caught.value)


def test_a_user_with_the_least_rights_is_enough(server: RedisServer) -> None:
    """One that may touch keys of the prefix alone, and ask the server nothing about itself."""
    rights = ["on", ">pw", "~reprise:*", "-@all", "+@read", "+@write", "+@scripting"]
    with server.admin() as admin:
        admin.execute_command("ACL", "SETUSER", "gateway", *rights)
    ours = RedisStore(Address.parse(f"redis://gateway:pw@127.0.0.1:{server.port}"))
    ours.record([sighting()])
    assert observed(ours) == 1
    assert ours.runs(limit=9) == [("night", 1)]
    assert ours.prune(1e12) == 2
    ours.close()
    with pytest.raises(StoreError):
        RedisStore(Address.parse(f"redis://gateway:pw@127.0.0.1:{server.port}"), prefix="other")


def test_a_unix_socket_is_enough(server: RedisServer) -> None:
    """By its URL."""
    ours = RedisStore(Address.parse(f"unix://{server.folder / 's'}"))
    ours.record([sighting()])
    assert observed(ours) == 1
    ours.close()


def test_tls_is_used_and_checked(tmp_path: Path) -> None:
    """A server whose certificate is known is talked to; without its authority it is refused."""
    certificate, key = certify(tmp_path)
    options: tuple[str, ...] = ("--port", "0", "--tls-auth-clients", "no", "--tls-ca-cert-file", str(certificate))
    options += ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-port")
    port = free_port()
    with redis_server(tmp_path, *options, str(port), scheme="rediss", port=port) as server:
        ours = RedisStore(Address.parse(f"{server.url}?ssl_ca_certs={certificate}"))
        ours.record([sighting()])
        assert observed(ours) == 1
        ours.close()
        with pytest.raises(StoreError, match="certificate"):
            RedisStore(Address.parse(server.url))


def certify(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
