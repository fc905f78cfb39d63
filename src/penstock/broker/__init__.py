"""Requests from any protocol: may they? then limits, the shard, and the answer once it is durable."""

from penstock.broker.access import LOCAL, Authorise, Client, Principal
from penstock.broker.broker import Broker
from penstock.broker.leases import Pending, Stream, StreamRequest
from penstock.operations import Action

__all__ = [
    "LOCAL",
    "Action",
    "Authorise",
    "Broker",
    "Client",
    "Pending",
    "Principal",
    "Stream",
    "StreamRequest",
]
