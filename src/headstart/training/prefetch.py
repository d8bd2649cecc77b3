"""Batches prepared ahead in another thread, so that a GPU never waits for its next one.

torch's DataLoader would need another process, which could not share the mapped corpus and its caches.
"""

from collections.abc import Iterator
from queue import Queue
from threading import Event, Thread

from headstart.batch import Batch

QUEUE_SIZE = 4  # steps that are ready at most


def prefetch(steps: Iterator[list[Batch]], pin_memory: bool) -> Iterator[list[Batch]]:
    """The same steps with their tokens counted, on demand in page-locked memory."""
    queue: Queue[list[Batch] | BaseException | None] = Queue(maxsize=QUEUE_SIZE)
    abandoned = Event()

    def fill() -> None:
        try:
            for parts in steps:
                ready = [part.pin_memory() if pin_memory else part for part in parts]
                for part in ready:
                    _ = part.num_tokens, part.label_counts  # cached, so that the step does not count
                queue.put(ready)
                if abandoned.is_set():
                    return
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    worker = Thread(target=fill, daemon=True)
    worker.start()
    try:
        while (found := queue.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        abandoned.set()
        while worker.is_alive():  # a thread that is cut off inside torch would end the process
            while not queue.empty():
                queue.get_nowait()
            worker.join(0.01)
