"""What is wrong with a data directory, what it means for queues and messages, and mending it.

`diagnose` reads everything and changes nothing; `repair` acts on a diagnosis. The steps of a repair are in an order in
which any of them may be the last, because the machine died: what was done is not lost, and a second repair finishes it.
"""

from penstock.repair.diagnosis import Diagnosis, Report, diagnose
from penstock.repair.mending import repair
from penstock.repair.salvage import Loss

__all__ = ["Diagnosis", "Loss", "Report", "diagnose", "repair"]
