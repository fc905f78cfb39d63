"""The worker: what `penstock worker` runs, and what a program may run itself.

worker = Worker(app, concurrency=16)
await worker.run()
"""

from penstock.worker.worker import Worker

__all__ = ["Worker"]
