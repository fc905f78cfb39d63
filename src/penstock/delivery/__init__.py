"""The rules of delivery, pure: no files, no clock, no threads.

`decide_*` looks and answers with entries; `DeliveryState.apply` alone alters state.
"""
