"""Requests from any protocol: may they? then limits, the shard, and the answer once it is durable."""

from penstock.broker.access import Authorise, Client, Principal, allow_all
from penstock.broker.broker import Broker
from penstock.broker.leases import Pending, Stream, StreamRequest
from penstock.operations import Action

__all__ = [
    "Action",
    "Authorise",
    "Broker",
    "Client",
    "Pending",
    "Principal",
    "Stream",
    "StreamRequest",
    "allow_all",
]
