"""The rules of delivery, pure: no files, no clock, no threads.

`decide_*` looks and answers with entries; `Delivery.apply` alone alters state.
"""
