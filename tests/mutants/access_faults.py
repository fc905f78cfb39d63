"""Faults of access control: each removes one check."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

DENIED: Final = ("tests/access/test_matrix.py::test_who_may_not_is_refused_and_leaves_no_trace",)
STRANGERS: Final = ("tests/access/test_strangers.py",)
GRANTS: Final = ("tests/access/test_grants.py",)
AUTHENTICATOR: Final = ("tests/access/test_authenticator.py",)
LET_IN: Final = '__import__("penstock.access.grants", fromlist=["LOCAL"]).LOCAL'

LOGINS: Final = (
    Fault(
        "hello-lets-in",
        "whoever says HELLO is let in",
        "server/dispatch.py",
        "principal = logins.by_token(hello.token, self._client.address, self._client.protocol)",
        f"principal = {LET_IN}",
        DENIED,
    ),
    Fault(
        "auth-lets-in",
        "whoever sends AUTH is let in",
        "server/tcp/connection.py",
        'principal = self._broker.logins.by_token(AUTH.read(body).token, self._client.address, "tcp")',
        f"principal = {LET_IN}",
        DENIED,
    ),
    Fault(
        "http-without-login",
        "requests without a token are answered",
        "server/http/connection.py",
        "        if not is_open:\n            return NotAuthenticated(",
        "        if not path:\n            return NotAuthenticated(",
        DENIED,
    ),
    Fault(
        "frames-without-login",
        "frames over HTTP are taken without a token",
        "server/http/frames.py",
        "        if not self.is_greeted and kind != Type.HELLO:\n",
        "        if not kind:\n",
        DENIED,
    ),
    Fault(
        "websocket-without-login",
        "messages of a WebSocket are taken before auth",
        "server/websocket/conversation.py",
        "        if self._client.principal is NOBODY and not isinstance(message, stream.Login):\n",
        "        if message is None:\n",
        DENIED,
    ),
    Fault(
        "grpc-without-login",
        "the metadata of a call are not looked at",
        "server/grpc/service.py",
        "        if client.principal is NOBODY:\n",
        "        if not client:\n",
        DENIED,
    ),
    Fault(
        "any-secret-of-a-key",
        "the id of a key is enough",
        "access/authenticator.py",
        "        if id is not None and is_key(token, self._digest_of(id)):\n",
        "        if id is not None:\n",
        DENIED,
    ),
    Fault(
        "expired-key-counts",
        "a key counts for ever",
        "access/authenticator.py",
        "key.expires_at <= self._clock.now()):\n            return None",
        "key.expires_at <= 0):\n            return None",
        DENIED,
    ),
    Fault(
        "revoked-key-remembered",
        "a key that was used lately counts though it is revoked",
        "access/authenticator.py",
        "        if principal is None or principal.is_revoked or self._is_over(principal):\n",
        "        if principal is None:\n",
        AUTHENTICATOR,
    ),
    Fault(
        "revoked-principal-may",
        "who was revoked may go on",
        "access/grants.py",
        "        allowed = not self.is_revoked and any(",
        "        allowed = any(",
        (*GRANTS, *AUTHENTICATOR),
    ),
    Fault(
        "second-hello-of-another",
        "a connection changes hands",
        "server/tcp/connection.py",
        "        if is_begun and principal is not self._client.principal:",
        "        if is_begun and principal is None:",
        STRANGERS,
    ),
    Fault(
        "second-auth-of-another",
        "a WebSocket changes hands",
        "server/websocket/conversation.py",
        "        if before not in (NOBODY, principal):",
        "        if before is None:",
        STRANGERS,
    ),
    Fault(
        "two-tokens",
        "of two Authorization headers the last counts",
        "server/http/connection.py",
        'sum(name == b"authorization" for name, _ in self._headers) > 1',
        'sum(name == b"authorization" for name, _ in self._headers) > 2',
        STRANGERS,
    ),
    Fault(
        "endless-login",
        "a stranger may go on trying for ever",
        "server/tcp/connection.py",
        "        if self._is_stranger and self._stranger_bytes > STRANGER_BYTES:\n",
        "        if self._is_stranger and self._stranger_bytes < 0:\n",
        STRANGERS,
    ),
    Fault(
        "uncounted-sockets",
        "a WebSocket that has not logged in is not counted",
        "server/http/connection.py",
        "        if principal is NOBODY and self._is_stranger:  # it stays one\n",
        "        if principal is None:\n",
        STRANGERS,
    ),
)

GRANTED: Final = (
    Fault(
        "prefix-anywhere",
        "a prefix matches in the middle of a name",
        "access/grants.py",
        "            return source.startswith(pattern[:-1])\n",
        "            return pattern[:-1] in source\n",
        DENIED,
    ),
    Fault(
        "prefix-of-dead-letters",
        "`shop.*` includes the dead letters of the queue shop",
        "access/grants.py",
        "            return source.startswith(pattern[:-1])\n",
        "            return queue.startswith(pattern[:-1])\n",
        GRANTS,
    ),
    Fault(
        "nothing-reserved",
        "`*` includes the queues of the broker",
        "access/grants.py",
        "        if queue.startswith(RESERVED_PREFIX) and not pattern.startswith(RESERVED_PREFIX):\n",
        "        if not pattern:\n",
        DENIED,
    ),
    Fault(
        "any-action",
        "a grant is for every action",
        "access/grants.py",
        "any(grant.action is action and grant.matches(queue) for grant in self.grants)",
        "any(grant.matches(queue) for grant in self.grants)",
        DENIED,
    ),
)

CHECKS: Final = (
    Fault(
        "push-one-unchecked",
        "whoever is let in may push one message",
        "broker/broker.py",
        "        refused = self.refused(client, Action.PUSH, queue)\n"
        "        if refused is not None:\n            on_reply(refused)\n        elif",
        "        if not queue:\n            return\n        elif",
        DENIED,
    ),
    Fault(
        "push-unchecked",
        "whoever is let in may push a batch",
        "broker/broker.py",
        "        refused = self.refused(client, Action.PUSH, queue)\n"
        "        if refused is not None:\n            on_reply(refused)\n            return\n",
        "",
        DENIED,
    ),
    Fault(
        "lease-unchecked",
        "whoever is let in may lease",
        "broker/broker.py",
        "_begun(pending, self.refused(client, Action.CONSUME, queue), on_reply)",
        "_begun(pending, None, on_reply)",
        DENIED,
    ),
    Fault(
        "stream-unchecked",
        "whoever is let in may open a stream",
        "broker/broker.py",
        "            raised(self.refused(client, Action.CONSUME, name))\n",
        "            pass\n",
        DENIED,
    ),
    Fault(
        "waiting-lease-unchecked",
        "a lease that waits outlives its grant",
        "broker/leases.py",
        "        return self._broker.refused(self._client, Action.CONSUME, self._queue, even_draining=True)\n",
        "        return None\n",
        STRANGERS,
    ),
    Fault(
        "events-unchecked",
        "whoever is let in may listen",
        "broker/broker.py",
        "                raised(self.refused(client, action, queue))\n",
        "                pass\n",
        DENIED,
    ),
    Fault(
        "settle-unchecked",
        "whoever is let in may settle",
        "broker/broker.py",
        "        if self.refuse(client, Action.CONSUME, queues, on_reply, even_draining=True):\n",
        "        if False:\n",
        DENIED,
    ),
    Fault(
        "extend-unchecked",
        "whoever is let in may extend a lease",
        "broker/broker.py",
        "        if self.refuse(client, Action.CONSUME, self._queues_of(nonce), on_reply, even_draining=True):\n",
        "        if False:\n",
        DENIED,
    ),
    Fault(
        "operations-unchecked",
        "whoever is let in may do what the table says",
        "broker/broker.py",
        "        self.authorisation.require(client, operation)\n        self.flush()\n",
        "        self.flush()\n",
        DENIED,
    ),
    Fault(
        "looked-up-unchecked",
        "what has an id is not looked up",
        "broker/authorisation.py",
        "        if look_up is not None:\n",
        "        if look_up is None:\n            return\n        if not client:\n",
        DENIED,
    ),
    Fault(
        "transaction-unchecked",
        "whoever is let in may have a transaction",
        "broker/broker.py",
        "            raised(self.refused(client, action, queue, even_draining=finishes))\n",
        "            pass\n",
        DENIED,
    ),
    Fault(
        "submit-unchecked",
        "whoever is let in may submit tasks",
        "broker/tasks.py",
        "        if broker.refuse(client, Action.PUSH, queues, on_reply):\n",
        "        if False:\n",
        DENIED,
    ),
    Fault(
        "finish-unchecked",
        "whoever is let in may finish tasks",
        "broker/tasks.py",
        "        if self._broker.refuse(client, Action.CONSUME, queues, on_reply, even_draining=True):\n",
        "        if False:\n",
        DENIED,
    ),
    Fault(
        "progress-unchecked",
        "whoever is let in may report progress",
        "broker/tasks.py",
        "        if self._broker.refuse(client, Action.CONSUME, (operation.receipt.queue,), on_reply,",
        "        if self._broker.refuse(client, Action.CONSUME, (), on_reply,",
        DENIED,
    ),
    Fault(
        "heartbeat-unchecked",
        "whoever is let in may pass for a worker",
        "broker/tasks.py",
        "    def heartbeat(self, client: Client, operation: ops.HeartbeatWorker, on_reply: OnReply) -> None:\n"
        "        if self._broker.refuse(client, Action.CONSUME, operation.queues(), on_reply):\n",
        "    def heartbeat(self, client: Client, operation: ops.HeartbeatWorker, on_reply: OnReply) -> None:\n"
        "        if False:\n",
        DENIED,
    ),
    Fault(
        "one-task-unchecked",
        "whoever is let in may see, cancel and retry a task",
        "broker/tasks.py",
        '        self._broker.authorisation.require_hidden(client, action, f"task {task_id}", queue)\n',
        "",
        DENIED,
    ),
    Fault(
        "claims-unchecked-at-first",
        "a claim asks only for the queues that it comes to",
        "server/tasks.py",
        "        raised(broker.refused(client, Action.CONSUME, queue))\n",
        "        pass\n",
        DENIED,
    ),
    Fault(
        "id-taken-over",
        "a task of another queue is put in the place of the one with its id",
        "task_index/database.py",
        'WHERE {_IN_ITS_QUEUE.format(queue="excluded.queue")}\n',
        "",
        ("tests/behaviour/test_task_ids.py",),
    ),
)

ACCESS_FAULTS: Final = (*LOGINS, *GRANTED, *CHECKS)
