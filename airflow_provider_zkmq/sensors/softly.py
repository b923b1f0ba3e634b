"""How a sensor ends that fails: in Airflow's errors, and skipped, with the reason, where it is to fail softly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import (
    AirflowException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
)

from airflow_provider_zkmq.engine import TlsRefused, WaitTimeout, ZkmqError
from airflow_provider_zkmq.hooks.deferring import AWAY
from airflow_provider_zkmq.operators.patience import NO_OUTAGE

if TYPE_CHECKING:
    from airflow.sdk import BaseSensorOperator


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn the engine's errors into Airflow's, except for a wait that was not in time."""
    try:
        yield
    except WaitTimeout:
        raise
    except ZkmqError as error:
        raise AirflowException(str(error)) from None


@contextmanager
def refusing_tls() -> Iterator[None]:
    """Turn certificates that are refused into an error of Airflow's: no wait mends them, as it does an outage."""
    try:
        yield
    except TlsRefused as error:
        raise AirflowException(str(error)) from None


@contextmanager
def timing_out() -> Iterator[None]:
    """Turn the end of a wait, be it for tasks or for ZooKeeper, into a sensor's time-out."""
    try:
        yield
    except NO_OUTAGE:
        raise
    except (WaitTimeout, AWAY) as error:
        raise AirflowSensorTimeout(str(error)) from None


@contextmanager
def failing_softly(sensor: BaseSensorOperator) -> Iterator[None]:
    """Turn failures into skips that tell why, where `soft_fail` or `never_fail` ask for it.

    Airflow's own sensor would skip without a reason: meanwhile it is told that it may fail.
    """
    soft_fail, never_fail = sensor.soft_fail, sensor.never_fail
    sensor.soft_fail = sensor.never_fail = False
    try:
        yield
    except (AirflowSkipException, AirflowNotFoundException, AirflowRescheduleException):
        raise
    except Exception as error:
        if never_fail or (soft_fail and isinstance(error, AirflowException | TaskDeferralError)):
            raise AirflowSkipException(f"Skipping instead of failing: {error}") from None
        raise
    finally:
        sensor.soft_fail, sensor.never_fail = soft_fail, never_fail
