# The public names of the package, each with the module that holds it: see `airflow_provider_zkmq.lazy_imports`.

from .api.client import AsyncZkmq as AsyncZkmq
from .api.claims import AsyncClaim as AsyncClaim, Claim as Claim
from .api.claim_iterators import AsyncClaims as AsyncClaims, Claims as Claims
from .api.queue import AsyncQueue as AsyncQueue, Queue as Queue
from .api.transactions import AsyncUnitOfWork as AsyncUnitOfWork, UnitOfWork as UnitOfWork
from .connection_config import ConnectionConfig as ConnectionConfig, Tls as Tls
from .connect import AnyClaim as AnyClaim, AnyClient as AnyClient, AnyQueue as AnyQueue, Zkmq as Zkmq
from .core.maintenance.fsck import Finding as Finding, FsckReport as FsckReport
from .core.model.znode_names import check_name as check_name
from .core.model.settings import (
    ConsumeOnce as ConsumeOnce,
    ConsumeTimes as ConsumeTimes,
    Limit as Limit,
    RetryPolicy as RetryPolicy,
    parse_limit as parse_limit,
)
from .core.model.records import Attempt as Attempt, Ended as Ended, Unreadable as Unreadable
from .core.model.new_message import (
    TRACE_CONTEXT as TRACE_CONTEXT,
    Message as Message,
    NewTasks as NewTasks,
    OnConflict as OnConflict,
    idempotency_series as idempotency_series,
)
from .core.model.handler_outcomes import Error as Error, Retry as Retry, Snooze as Snooze, Success as Success
from .core.model.filters import (
    AllOf as AllOf,
    AnyOf as AnyOf,
    Condition as Condition,
    FilterType as FilterType,
    FilterTypes as FilterTypes,
    Integer as Integer,
    OrderedEnum as OrderedEnum,
    Selector as Selector,
    String as String,
    parse_selector as parse_selector,
    parse_type as parse_type,
    spell_type as spell_type,
)
from .core.model.states import State as State, Status as Status
from .core.model.values import (
    Duration as Duration,
    Moment as Moment,
    WaitFor as WaitFor,
    parse_duration as parse_duration,
    parse_moment as parse_moment,
    spell_duration as spell_duration,
    wait_event as wait_event,
)
from .core.read.configuration import Archive as Archive, QueueConf as QueueConf
from .core.maintenance.consumer_registry import Consumer as Consumer
from .core.read.completion_log import Truncation as Truncation
from .core.read.inspect import ConsumerMatch as ConsumerMatch, Explanation as Explanation, Task as Task
from .core.read.bulk_read import Part as Part
from .core.read.inspect import Znode as Znode, enqueue_transactions as enqueue_transactions
from .core.read.overview import (
    Activity as Activity,
    HeldClaim as HeldClaim,
    Overview as Overview,
    Unaccepted as Unaccepted,
)
from .core.read.columnar_read import Scanned as Scanned
from .core.tasks.batches import Batch as Batch
from .errors import (
    AccessDenied as AccessDenied,
    BadMessage as BadMessage,
    ClaimLost as ClaimLost,
    ConfigError as ConfigError,
    CorruptRecord as CorruptRecord,
    DuplicateTask as DuplicateTask,
    HostNotFound as HostNotFound,
    IllegalTransition as IllegalTransition,
    NotSecured as NotSecured,
    OutcomeUnknown as OutcomeUnknown,
    QueueError as QueueError,
    QueueNotFound as QueueNotFound,
    SessionLost as SessionLost,
    TaskNotFound as TaskNotFound,
    TaskTooLarge as TaskTooLarge,
    TlsRefused as TlsRefused,
    TransportError as TransportError,
    Unavailable as Unavailable,
    Unsupported as Unsupported,
    WaitTimeout as WaitTimeout,
    ZkmqError as ZkmqError,
)
from .core.zk_operations import MAX_PAYLOAD as MAX_PAYLOAD
from .working.async_worker import AsyncWorker as AsyncWorker
from .working.worker_base import (
    Monitor as Monitor,
    Poll as Poll,
    Running as Running,
    RunningAsync as RunningAsync,
    monitor as monitor,
)
from .working.worker import Worker as Worker
