"""What is wrong with a data directory, what it means for queues and messages, and repairing it.

`diagnose` reads everything and changes nothing; `repair` acts on a diagnosis. The steps of a repair are in an order in
which any of them may be the last, because the machine died: what was done is not lost, and a second repair finishes it.
"""
