"""Steps made ahead in another thread, so that a GPU never waits for its next batch."""

from collections.abc import Iterator
from queue import Queue
from threading import Event, Thread

from headstart.batch import Batch

AHEAD = 4  # steps that are ready at most


def prefetch(steps: Iterator[list[Batch]], is_pinned: bool) -> Iterator[list[Batch]]:
    """The same steps, counted, and where asked in page-locked memory, from which a GPU copies while it computes."""
    queue: Queue[list[Batch] | BaseException | None] = Queue(maxsize=AHEAD)
    abandoned = Event()

    def fill() -> None:
        try:
            for parts in steps:
                ready = [part.pin_memory() if is_pinned else part for part in parts]
                for part in ready:
                    _ = part.num_tokens, part.label_counts  # counted here, so that the step finds them known
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
        while worker.is_alive():  # let it finish: a thread cut off inside torch takes the process with it
            while not queue.empty():
                queue.get_nowait()
            worker.join(0.01)
