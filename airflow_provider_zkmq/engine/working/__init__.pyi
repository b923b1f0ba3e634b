from .async_worker import AsyncWorker as AsyncWorker
