"""Where an archive is: how a folder and an address are spelt, whose keys open it, and what is said of a store."""

from __future__ import annotations

import json
import pickle
import socket
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from pyarrow.fs import FileSelector

from airflow_provider_zkmq.delta_tables import Staged, Table
from airflow_provider_zkmq.engine import ConfigError
from airflow_provider_zkmq.history import archived
from airflow_provider_zkmq.location import Location, StoreFailed
from tests.delta_tables import SCHEMA, commit

VARIABLES = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "DEFAULT_REGION", "ENDPOINT_URL")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of S3."""
    for name in (*VARIABLES, "ENDPOINT_URL_S3"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    return monkeypatch


def test_a_location_is_spelt_in_one_way(tmp_path, monkeypatch) -> None:
    """So that the queue's znode, lineage and errors name an archive alike; parts are joined and taken apart."""
    monkeypatch.chdir(tmp_path)
    assert Location("archive") == Location.of(Path("archive")) == Location(f"{tmp_path}/archive/")
    assert Location.of(here := Location("s3a://bucket/a/")) is here
    assert (here.address, here.path, here.uri) == ("s3://bucket/a", "bucket/a", "s3://bucket/a")
    assert (here / "q", (here / "q").name, (here / "q").parent) == (Location("s3://bucket/a/q"), "q", here)
    assert (here.folder, Location("archive").folder) == (None, tmp_path / "archive")
    assert Location("archive").uri == (tmp_path / "archive").as_uri()
    assert Location("s3://bucket//a///b").address == "s3://bucket/a/b"
    assert Location("~/archive").folder == Path.home() / "archive"
    for wrong in (
        "gs://bucket/a",
        "s3://",
        "file:///tmp",
        "s3:///a",
        "",
        "s3:/bucket/a",
        "s3://key:marker@bucket",
        "S3://b",
    ):
        with pytest.raises(ConfigError, match="an archive is in a folder or at s3://bucket/prefix") as refused:
            Location(wrong)
        assert "marker" not in str(refused.value)
    with pytest.raises(ConfigError, match="is a folder: connection 'aws' opens none"):
        Location("/archive", "aws")
    for unusable in ("/archive/50%", "s3://bucket/a?b"):
        with pytest.raises(ConfigError, match="cannot be kept under a path with"):
            Location(unusable).check_writable()


def test_keys_come_from_the_connection_else_from_the_environment(keys) -> None:
    """Both libraries are given the same; a location has none of them, so that Spark may write it anywhere."""
    assert Location("/archive").options() is None
    assert "aws_access_key_id" not in Location("s3://bucket").options(), "the machine's role is asked"
    keys.setenv("AWS_ACCESS_KEY_ID", "mine")
    keys.setenv("AWS_SECRET_ACCESS_KEY", "marker-1")
    keys.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    own = Location("s3://bucket").options()
    assert (own["aws_access_key_id"], own["aws_region"]) == ("mine", "eu-north-1")
    assert "aws_allow_http" not in own
    extra = {"region_name": "eu-west-3", "endpoint_url": "http://127.0.0.1:1", "aws_session_token": "marker-2"}
    said = {"conn_type": "aws", "login": "theirs", "password": "marker-3", "extra": extra}
    keys.setenv("AIRFLOW_CONN_STORE", json.dumps(said))
    there = Location("s3://bucket", "store")
    given = there.options()
    assert (given["aws_access_key_id"], given["aws_secret_access_key"]) == ("theirs", "marker-3")
    assert (given["aws_session_token"], given["aws_region"]) == ("marker-2", "eu-west-3")
    assert (given["aws_endpoint_url"], given["aws_allow_http"]) == ("http://127.0.0.1:1", "true")
    assert there.files().region == "eu-west-3"
    assert pickle.loads(pickle.dumps(there)) == there  # noqa: S301  our own
    assert b"marker" not in pickle.dumps(there)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"password": None}, "connection 'store' has a part of a key"),
        ({"login": None}, "connection 'store' has a part of a key"),
        ({"host": "store.example"}, "as endpoint_url in the extra, not as host"),
        ({"conn_type": "zkmq"}, "is of type 'zkmq': the keys to S3 are in one of type 'aws'"),
        ({"extra": {"role_arn": "marker"}}, "its extra may have aws_access_key_id, "),
        ({"extra": {"region_name": 7}}, "its extra may have"),
        ({"extra": '["marker"]'}, "its extra may have"),
        ({"extra": {"endpoint_url": "marker:9000"}}, "the endpoint that connection 'store' gives must be http"),
        ({"extra": {"endpoint_url": "http://a:marker@b"}}, "the endpoint that connection 'store' gives must be http"),
    ],
)
def test_a_connection_that_is_not_understood_is_refused(keys, changed, said) -> None:
    """Rather than that other keys are used than it means; what is said shows no secret."""
    conn = {"conn_type": "aws", "login": "a", "password": "marker", "extra": {"region_name": None}}
    keys.setenv("AIRFLOW_CONN_STORE", json.dumps({**conn, **changed}))
    with pytest.raises(ConfigError) as refused:
        Location("s3://bucket", "store").options()
    assert said in str(refused.value)
    assert "marker" not in str(refused.value)
    with pytest.raises(ConfigError, match="connection 'nowhere' is not known here"):
        Location("s3://bucket", "nowhere").files()


def test_keys_of_two_origins_are_not_mixed(keys) -> None:
    """`deltalake` would take from the environment what the connection does not say; half a key is none."""
    keys.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", "login": "a", "password": "b"}))
    there = Location("s3://bucket", "store")
    assert there.options()["aws_access_key_id"] == "a"
    for name, value in (("SESSION_TOKEN", "t"), ("ENDPOINT_URL", "http://127.0.0.1:9")):
        keys.setenv(f"AWS_{name}", value)
        with pytest.raises(ConfigError, match="connection 'store' does not say aws_.*, and the environment does"):
            there.options()
        keys.delenv(f"AWS_{name}")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        keys.setenv(f"AWS_{name}", "x")
        with pytest.raises(ConfigError, match="the environment has a part of a key to s3://bucket"):
            Location("s3://bucket").check_writable()
        keys.delenv(f"AWS_{name}")


def test_a_store_that_is_away_or_has_no_such_bucket_is_told_of_in_one_line(s3, monkeypatch) -> None:
    """By the location, and by why; what only looks says it as well as what writes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address, endpoint, why in (
        ("s3://no-such-bucket/archive", s3, "[Bb]ucket"),
        ("s3://bucket/archive", f"http://127.0.0.1:{port}", "[Cc]onnect"),
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        there = Location(address)
        with pytest.raises(ConfigError, match=f"the archive {address} cannot be written to: .*") as refused:
            there.check_writable()
        assert "\n" not in str(refused.value)
        with pytest.raises(StoreFailed, match=f"^{address}/q/bronze at {endpoint}: .*{why}") as failed:
            Table.open(there / "q", "bronze")
        assert "\n" not in str(failed.value)


def test_an_empty_place_holds_no_archive_and_takes_one(bucket) -> None:
    """A new bucket, or one with other things in it; the queues that are archived there are found."""
    with pytest.raises(ConfigError, match=f"{bucket} holds no archive of any queue"):
        archived(bucket, None)
    bucket.check_writable()
    left = bucket.files().get_file_info(FileSelector(bucket.path, recursive=True))
    assert not [each.path for each in left if each.is_file], "nothing is left of the check"
    (bucket / "report.html").write(b"<html>")
    for queue in ("b", "a"):
        commit(bucket / queue, "bronze", 0, 5)
    assert archived(bucket, None) == ["a", "b"]
    with pytest.raises(ConfigError, match=r"holds no archive of queue 'aa' \(did you mean 'a'"):
        archived(bucket, ["aa"])


def test_who_commits_to_a_table_in_s3_second_is_refused(bucket) -> None:
    """By the store, which lets one of two write a commit's file; also where both make the table."""
    for watermark in (5, 6):
        late = Table.open(bucket / "q", "runs")
        commit(bucket / "q", "runs", 0, watermark)
        with pytest.raises(ConfigError, match="another run has written .*runs meanwhile; this one changed nothing"):
            late.commit(Staged(SCHEMA, (), 0), late.mark)
        assert Table.open(bucket / "q", "runs").mark.watermark == watermark
