"""`penstock key`, `user`, `role`, `namespace` and `whoami`: who may do what.

A new key is printed on standard output, alone, so that a pipe or a file receives it and nothing else. A password is
never an argument: it is asked for without an echo, or read from standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape

from penstock.cli import human, output
from penstock.cli.exits import CommandError
from penstock.cli.options import AsJson, Flags, Yes, command, seconds_option
from penstock.cli.target import Broker
from penstock.errors import AccessNotFound, InvalidField
from penstock.model_access import ApiKeyView, NamespaceView, NewKey, Quotas, RoleView, UserView
from penstock.units import plural, size_bytes

keys = typer.Typer(help="API keys: create, list, rotate, revoke.", no_args_is_help=True)
users = typer.Typer(help="Users: create, update, list, delete.", no_args_is_help=True)
roles = typer.Typer(help="Roles: set, list, delete.", no_args_is_help=True)
namespaces = typer.Typer(help="Namespaces: create, list, delete.", no_args_is_help=True)

KEEP_SECONDS = 86_400.0

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The id of the key, from 'penstock key list'.")]
PrincipalName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the user or service that uses the key.")
]
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the user.")]
RoleName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the role.")]
NamespaceName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the namespace; its queues are named NAME.something.")
]
Grants = Annotated[
    list[str] | None,
    typer.Option("--grant", metavar="GRANT", help="push:orders, viewer:shop.* or a role; repeatable."),
]
Namespace = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="The namespace to belong to.")]
Certificates = Annotated[
    list[str] | None,
    typer.Option(
        "--certificate", metavar="NAME", help="A name in a client certificate that identifies it; repeatable."
    ),
]
Expires = Annotated[float | None, seconds_option("--expires", about="Lifetime of the key, such as 30d.")]
PasswordStdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]


def whoami(broker: Broker, as_json: AsJson = False) -> None:
    """Show who you are to the broker and what you may do."""
    with broker.opened() as ps:
        me = ps.access.me()
    if as_json:
        output.write_json(me)
        return
    where = f" in namespace {escape(me.namespace)}" if me.namespace else ""
    output.write(f"[bold]{escape(me.name)}[/]{where}")
    output.write_plain("\n".join(f"  {grant}" for grant in me.grants) or "  no grants: nothing is allowed")


# keys


@command(keys)
def create(
    broker: Broker,
    name: PrincipalName,
    grant: Grants = None,
    expires: Expires = None,
    namespace: Namespace = None,
    certificate: Certificates = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key and print it once. For another key of an existing principal, omit --grant."""
    with broker.opened(create=True) as ps:
        made = ps.access.create_key(
            name, grant or None, namespace=namespace or "", expires_seconds=expires, certificates=certificate or None
        )
    _write_key(made, f"key {made.id} of {made.name}", as_json=as_json)


@command(keys, "list")
def list_keys(broker: Broker, as_json: AsJson = False) -> None:
    """List API keys, without their secrets."""
    with broker.opened() as ps:
        keys = ps.access.keys()
    headings = ("id", "name", "namespace", "grants", "created", "expires")
    output.write_list(keys, headings, _key_row, as_json=as_json, nothing=_none_of("key"))


def _key_row(key: ApiKeyView) -> tuple[str, ...]:
    made, left = f"{human.age(key.created_at)} ago", human.until(key.expires_at).replace("now", "expired")
    return key.id, key.name, key.namespace or human.EMPTY, _shown(key.grants), made, left


@command(keys)
def rotate(
    broker: Broker,
    key_id: KeyId,
    keep: Annotated[float, seconds_option("--keep", about="How long the old key remains valid.")] = KEEP_SECONDS,
    expires: Expires = None,
    as_json: AsJson = False,
) -> None:
    """Replace a key and print the new one. The old one stays valid for a while."""
    with broker.opened() as ps:
        made = ps.access.rotate_key(key_id, keep_seconds=keep, expires_seconds=expires)
    until = (
        f"the old key {key_id} stays valid for {human.duration(keep)}" if keep else f"the old key {key_id} is revoked"
    )
    _write_key(made, f"key {made.id} of {made.name}; {until}", as_json=as_json)


@command(keys)
def revoke(broker: Broker, key_id: KeyId, as_json: AsJson = False) -> None:
    """Revoke a key now. Connections that use it are closed."""
    with broker.opened() as ps:
        ps.access.revoke_key(key_id)
    output.done(f"key {key_id} is revoked", {"id": key_id, "status": "revoked"}, as_json=as_json)


def _write_key(made: NewKey, text: str, *, as_json: bool) -> None:
    """The key on standard output, what to do with it on standard error."""
    if as_json:
        output.write_json(made)
        return
    errors = output.SafeConsole(stderr=True, highlight=False)
    output.write(f"[green]✓[/] {escape(text)}: {escape(', '.join(made.grants))}", errors)
    if made.expires_at is not None:
        output.write(f"  it expires at {human.moment(made.expires_at)}", errors)
    output.write("  It is shown only once. Keep it in a file that only you can read:", errors)
    output.write("    PENSTOCK_TOKEN_FILE=<file>, or PENSTOCK_TOKEN, or penstock.connect(url, token=…)", errors)
    output.write("    curl -H 'Authorization: Bearer <key>' …", errors)
    output.write_plain(made.key)


# users


@command(users, "create")
def create_user(
    broker: Broker,
    name: UserName,
    grant: Grants = None,
    namespace: Namespace = None,
    certificate: Certificates = None,
    password: Annotated[bool, typer.Option("--password/--no-password", help="Ask for a password.")] = True,
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Create a user. Asks for a dashboard password unless a certificate identifies the user."""
    if not grant:
        raise InvalidField(f"grants: {name!r} needs grants", hint="such as --grant viewer or --grant operator:shop.*")
    with broker.opened(create=True) as ps:
        if any(user.name == name for user in ps.access.users()):
            raise CommandError(f"user {name!r} already exists", hint="'penstock user update' changes it")
        secret = _password(name, asks=password and not certificate, from_stdin=password_stdin)
        made = ps.access.set_user(
            name, grants=grant, namespace=namespace, certificates=certificate or None, password=secret
        )
    output.done(f"user {name}: {', '.join(made.grants)}", made, as_json=as_json)


@command(users)
def update(
    broker: Broker,
    name: UserName,
    grant: Grants = None,
    namespace: Namespace = None,
    certificate: Certificates = None,
    password: Annotated[
        bool | None, typer.Option("--password/--no-password", help="Ask for a new password, or remove it.")
    ] = None,
    password_stdin: PasswordStdin = False,
    as_json: AsJson = False,
) -> None:
    """Change a user. --grant and --certificate replace the previous values."""
    if not (grant or certificate or password_stdin) and namespace is None and password is None:
        raise CommandError("nothing to change", hint="use --grant, --namespace, --certificate or --password")
    with broker.opened() as ps:
        if all(user.name != name for user in ps.access.users()):
            raise AccessNotFound(f"there is no user {name!r}", hint="'penstock user create' creates one")
        secret = "" if password is False else _password(name, asks=bool(password), from_stdin=password_stdin)
        changed = ps.access.set_user(
            name, grants=grant or None, namespace=namespace, certificates=certificate or None, password=secret
        )
    output.done(f"user {name}: {', '.join(changed.grants)}", changed, as_json=as_json)


@command(users, "list")
def list_users(broker: Broker, as_json: AsJson = False) -> None:
    """List users and other principals."""
    with broker.opened() as ps:
        users = ps.access.users()
    headings = ("name", "namespace", "grants", "signs in with")
    output.write_list(users, headings, _user_row, as_json=as_json, nothing=_none_of("user"))


def _user_row(user: UserView) -> tuple[str, ...]:
    return user.name, user.namespace or human.EMPTY, _shown(user.grants), _proofs(user)


@command(users, "delete")
def delete_user(broker: Broker, name: UserName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a user and its keys. Its connections are closed."""
    output.confirm(f"Delete user {name} and its keys?", yes=yes)
    with broker.opened() as ps:
        ps.access.delete_user(name)
    output.done(f"user {name} is deleted", {"name": name, "status": "deleted"}, as_json=as_json)


def _password(name: str, *, asks: bool, from_stdin: bool) -> str | None:
    """A password; None when there is to be none."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise CommandError("standard input has no password", hint="such as: --password-stdin < file")
        return password
    if not asks:
        return None
    if not output.has_terminal():
        raise CommandError("no terminal to ask for a password", hint="use --password-stdin or --no-password")
    typed: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    return typed


def _proofs(user: UserView) -> str:
    """How somebody proves who they are."""
    proofs = ["password"] if user.has_password else []
    proofs += [plural(user.keys, "key")] if user.keys else []
    return ", ".join([*proofs, *user.certificates]) or human.EMPTY


# roles


@command(roles, "set")
def set_role(broker: Broker, name: RoleName, grant: Grants = None, as_json: AsJson = False) -> None:
    """Create or change a role. Its holders get the new grants at once."""
    if not grant:
        raise InvalidField(f"grants: role {name!r} needs grants", hint="such as --grant push:orders --grant monitor:*")
    with broker.opened(create=True) as ps:
        made = ps.access.set_role(name, grant)
    output.done(f"role {name}: {', '.join(made.grants)}", made, as_json=as_json)


@command(roles, "list")
def list_roles(broker: Broker, as_json: AsJson = False) -> None:
    """List roles, built-in ones first."""
    with broker.opened() as ps:
        roles = ps.access.roles()
    output.write_list(roles, ("role", "", "grants"), _role_row, as_json=as_json, nothing=_none_of("role"))


def _role_row(role: RoleView) -> tuple[str, ...]:
    return role.name, "built in" if role.is_built_in else human.EMPTY, _shown(role.grants)


@command(roles, "delete")
def delete_role(broker: Broker, name: RoleName, as_json: AsJson = False) -> None:
    """Delete a role that nobody has."""
    with broker.opened() as ps:
        ps.access.delete_role(name)
    output.done(f"role {name} is deleted", {"name": name, "status": "deleted"}, as_json=as_json)


# namespaces


@dataclass(frozen=True)
class QuotaFlags(Flags):
    """What a namespace may use."""

    queues: Annotated[int | None, typer.Option("--queues", metavar="COUNT", help="Maximum number of queues.")] = None
    groups: Annotated[
        int | None, typer.Option("--groups", metavar="COUNT", help="Maximum number of consumer groups.")
    ] = None
    bytes: Annotated[
        int | None, typer.Option("--bytes", parser=size_bytes, metavar="SIZE", help="Maximum size of stored messages.")
    ] = None
    messages_rate: Annotated[
        float | None, typer.Option("--messages-rate", metavar="COUNT", help="Maximum messages pushed per second.")
    ] = None
    bytes_rate: Annotated[
        float | None,
        typer.Option("--bytes-rate", parser=size_bytes, metavar="SIZE", help="Maximum bytes pushed per second."),
    ] = None
    connections: Annotated[
        int | None, typer.Option("--connections", metavar="COUNT", help="Maximum number of connections.")
    ] = None
    staged_bytes: Annotated[
        int | None,
        typer.Option("--staged-bytes", parser=size_bytes, metavar="SIZE", help="Maximum size of data staged by sinks."),
    ] = None


@command(namespaces, "create")
def create_namespace(broker: Broker, name: NamespaceName, quotas: QuotaFlags, as_json: AsJson = False) -> None:
    """Create a namespace or replace its quotas. A quota that is not given is unlimited."""
    with broker.opened(create=True) as ps:
        made = ps.access.set_namespace(name, **asdict(quotas))
    output.done(f"namespace {name}: queues {made.prefix}*; {_limits(made.quotas)}", made, as_json=as_json)


@command(namespaces, "list")
def list_namespaces(broker: Broker, as_json: AsJson = False) -> None:
    """List namespaces with their usage and quotas."""
    with broker.opened() as ps:
        namespaces = ps.access.namespaces()
    headings = ("namespace", "its queues", "used, of its quotas", "users")
    nothing = _none_of("namespace")
    output.write_list(namespaces, headings, _namespace_row, as_json=as_json, nothing=nothing, text_columns=3)


def _namespace_row(namespace: NamespaceView) -> tuple[Any, ...]:
    return namespace.name, f"{namespace.prefix}*", _used(namespace), namespace.users


@command(namespaces, "delete")
def delete_namespace(broker: Broker, name: NamespaceName, as_json: AsJson = False) -> None:
    """Delete a namespace without members. Its queues stay."""
    with broker.opened() as ps:
        ps.access.delete_namespace(name)
    output.done(f"namespace {name} is deleted", {"name": name, "status": "deleted"}, as_json=as_json)


def _limits(quotas: Quotas) -> str:
    limits = ((name, getattr(quotas, name)) for name in quotas.__struct_fields__)
    return ", ".join(f"{name} {_amount(name, limit)}" for name, limit in limits if limit is not None) or "no quotas"


def _used(namespace: NamespaceView) -> str:
    """What is used of each quota; of what has none, only what is used."""
    shown = []
    for name in namespace.quotas.__struct_fields__:
        limit, used = getattr(namespace.quotas, name), getattr(namespace.usage, name)
        if limit is not None:
            shown.append(f"{name} {_amount(name, used or 0)} of {_amount(name, limit)}")
        elif used:
            shown.append(f"{name} {_amount(name, used)}")
    return ", ".join(shown) or "nothing, no quotas"


def _amount(quota: str, value: float) -> str:
    text = human.size(value) if "bytes" in quota else f"{value:,g}"
    return f"{text}{'/s' if quota.endswith('_rate') else ''}"


# lists


def _none_of(what: str) -> tuple[str, str]:
    return f"no {what}s", f"'penstock {what} create' creates one"


def _shown(grants: Sequence[str]) -> str:
    return ", ".join(grants) or "none"
