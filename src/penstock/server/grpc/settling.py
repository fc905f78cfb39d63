"""Settling and extending: a result for each receipt, one commit for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock import limits
from penstock.broker import Broker, Client
from penstock.errors import InvalidField, PenstockError
from penstock.model import Receipt
from penstock.requests import Settling
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.large import TURN_COUNT, convert, convert_many
from penstock.server.grpc.leasing import lease_seconds, settling
from penstock.server.grpc.values import error_of, nonce_of, timestamp


async def settle(broker: Broker, client: Client, settlements: Sequence[pb.Settlement]) -> pb.SettleResponse:
    """All of them. One that says nothing sensible is refused before any is begun."""
    asked = await convert(_checked, settlements)
    results: list[pb.SettleResult] = []
    for first in range(0, len(asked), TURN_COUNT):
        for some in await asyncio.gather(*(_one(broker, client, *each) for each in asked[first : first + TURN_COUNT])):
            results += some
    return await convert_many(len(results), pb.SettleResponse, results=results)


def _checked(settlements: Sequence[pb.Settlement]) -> list[tuple[pb.Settlement, Settling]]:
    asked = [(settlement, settling(settlement)) for settlement in settlements]
    for settlement in settlements:
        if bool(settlement.lease_id) == bool(settlement.receipts):
            raise InvalidField("settle: it takes receipts or a lease_id", hint="one of the two")
    _check_count("settle", sum(len(settlement.receipts) or 1 for settlement in settlements))
    return asked


def _check_count(what: str, count: int) -> None:
    limit = limits.lease_messages_max
    if count > limit:
        raise InvalidField(f"{what}: {count:,} receipts is over the limit of {limit:,}", hint="send several requests")


async def _one(broker: Broker, client: Client, settlement: pb.Settlement, how: Settling) -> list[pb.SettleResult]:
    if settlement.lease_id:
        return [await _lease(broker, client, settlement.lease_id, how)]
    results, sound, proofs = await convert(_proofs, settlement)
    if proofs:
        await convert(_tell, sound, await broker.settled_each(client, proofs, how))
    return results


def _proofs(settlement: pb.Settlement) -> tuple[list[pb.SettleResult], list[pb.SettleResult], list[Receipt]]:
    """A result for each receipt, with an error for what is no receipt; those that are sound, and their receipts."""
    results = [pb.SettleResult(receipt=receipt) for receipt in settlement.receipts]
    proofs: list[Receipt] = []
    sound: list[pb.SettleResult] = []
    for result in results:
        try:
            proofs.append(Receipt.parse(result.receipt))
            sound.append(result)
        except PenstockError as error:
            result.error.CopyFrom(error_of(error))
    return results, sound, proofs


def _tell(results: list[pb.SettleResult], answers: Sequence[PenstockError | None]) -> None:
    for result, answer in zip(results, answers, strict=True):
        if answer is not None:
            result.error.CopyFrom(error_of(answer))


async def _lease(broker: Broker, client: Client, lease_id: str, how: Settling) -> pb.SettleResult:
    try:
        await broker.settled_lease(client, nonce_of(lease_id), how)
    except PenstockError as error:
        return pb.SettleResult(receipt=lease_id, error=error_of(error))
    return pb.SettleResult(receipt=lease_id)


async def extend(broker: Broker, client: Client, request: pb.ExtendRequest) -> pb.ExtendResponse:
    """Hold leases, each by itself."""
    seconds = lease_seconds(request)
    _check_count("extend", len(request.receipts) + len(request.lease_ids))
    response = pb.ExtendResponse()
    for index, name in enumerate((*request.receipts, *request.lease_ids)):
        if index % TURN_COUNT == TURN_COUNT - 1:
            await asyncio.sleep(0)  # others have their turn
        result = response.results.add(receipt=name)
        try:
            nonce = Receipt.parse(name).nonce if ":" in name else nonce_of(name)
            result.expires_at.CopyFrom(timestamp(await broker.extended(client, nonce, seconds)))
        except PenstockError as error:
            result.error.CopyFrom(error_of(error))
    return response
