"""The arguments of a function as JSON, and back, by its annotations.

Arguments are written and read back before they are stored, so that what does not fit the function is refused where it
was given, with the parameter's name; a worker reads them by the same rules again. A parameter without annotation takes
any JSON. Bytes are not written as JSON: they travel beside it, and a mark stands in their place.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UNSET

from penstock.envelopes import bytes_in, marked_bytes
from penstock.errors import InvalidField
from penstock.model_tasks import BYTES_MARK
from penstock.tasks.json_values import NOT_JSON, decoder, encode, encode_more, loss_of, may_lose, readable

T = TypeVar("T")

NO_ARGS: Final = b"[]"
NO_KWARGS: Final = b"{}"

_BYTES: Final = (bytes, bytearray, memoryview)
_EMPTY: Final = b'""'  # the JSON of no bytes
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_SIMPLE: Final = frozenset({str, int, float, bool, bytes, type(None)})  # come back as they are, or are refused
_NAMED: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_PLACE: Final = re.compile(r"(?P<what>.*) - at `\$(?:\[(?P<index>\d+)\]|\.(?P<name>\w+))?(?P<rest>.*)`", re.DOTALL)


class _Shown(str):
    """An annotation that is text already, as it stands in the source."""

    __slots__ = ()

    @classmethod
    def of(cls, annotation: Any) -> Any:
        return cls(annotation) if isinstance(annotation, str) else annotation

    def __repr__(self) -> str:
        return str(self)


class Calls:
    """Calls of one function. `skip` leading parameters are filled by the results of parents."""

    def __init__(self, name: str, function: Callable[..., Any], hints: Mapping[str, Any], skip: int = 0) -> None:
        self.name = name
        self._function = function
        self._hints = hints
        self._skip = skip
        parameters = list(inspect.signature(function).parameters.values())
        self.positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL][skip:]
        self.named = {
            parameter.name: parameter
            for parameter in parameters
            if parameter.kind in _NAMED and parameter not in parameters[:skip]
        }
        self.rest = next((parameter for parameter in parameters if parameter.kind == Parameter.VAR_POSITIONAL), None)
        self.others = next((parameter for parameter in parameters if parameter.kind == Parameter.VAR_KEYWORD), None)
        required = [
            parameter for parameter in (*self.positional, *self.named.values()) if parameter.default is Parameter.empty
        ]
        self.required = frozenset(parameter.name for parameter in required)
        self._required_positional = sum(parameter.default is Parameter.empty for parameter in self.positional)
        self._has_required_named = any(parameter.kind == Parameter.KEYWORD_ONLY for parameter in required)
        self._needs_only_places = self.rest is None and not self._has_required_named
        self._decoders: dict[int, msgspec.json.Decoder[Any]] = {}  # by the number of positional arguments
        self._decoders_by_name: dict[str, msgspec.json.Decoder[Any]] = {}

    @cached_property
    def after_first(self) -> Calls:
        """The calls of this function without its first parameter, which receives the parents' results."""
        if not self.positional and self.rest is None:
            raise InvalidField(f"task {self.name!r}: it has no parameter for the results of its parents")
        return Calls(self.name, self._function, self._hints, skip=1)

    @property
    def takes_nothing(self) -> bool:
        """Whether it can be called without arguments."""
        return not self.required

    # from Python to JSON

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """JSON of a call that fits the function; `InvalidField` names what does not."""
        try:
            data = (encode(args) if args else NO_ARGS, encode(kwargs) if kwargs else NO_KWARGS)
        except NOT_JSON:
            self._refuse_unwritable(args, kwargs)
            raise
        needs_more = kwargs or not self._needs_only_places or len(args) < self._required_positional
        if needs_more or (self._may_lose and any(type(value) not in _SIMPLE for value in args)):
            self._compare(args, kwargs, *self.decode(*data))
        elif args:
            # Enough arguments, all by place: it is for their types alone to be looked at.
            try:
                self._places_decoder.decode(data[0])
            except msgspec.MsgspecError as error:
                raise self._wrong(error) from None
        return data

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, bytes, bytes | None]:
        """The same, and the bytes among the arguments by themselves; None when there are none."""
        if not any(type(value) in _BYTES for value in (*args, *kwargs.values())):
            return *self.encode(args, kwargs), None
        places = {index for index, value in enumerate(args) if self._is_binary(self._name_of(index), value)}
        names = {name for name, value in kwargs.items() if self._is_binary(name, value)}
        if not places and not names:
            return *self.encode(args, kwargs), None
        emptied = tuple(b"" if index in places else value for index, value in enumerate(args))
        self.encode(emptied, {name: b"" if name in names else value for name, value in kwargs.items()})
        payload = [args[index] for index in sorted(places)] + [kwargs[name] for name in kwargs if name in names]
        places_json = encode([_mark(value) if index in places else value for index, value in enumerate(args)])
        names_json = encode({name: _mark(value) if name in names else value for name, value in kwargs.items()})
        if len(bytes_in(places_json, names_json)) != len(payload):
            raise InvalidField(
                f"task {self.name!r}: an argument has {BYTES_MARK!r} as its only name, which is reserved"
            )
        return places_json, names_json, b"".join(map(bytes, payload))

    def _is_binary(self, name: str, value: Any) -> bool:
        """Whether an argument is bytes, for a parameter that takes them as they are."""
        return type(value) in _BYTES and takes_bytes(self._hints.get(self._parameter_of(name), Any))

    def _parameter_of(self, name: str) -> str:
        """The parameter that an argument goes to; one that takes the rest has the annotation for all of it."""
        if name in self.named or any(parameter.name == name for parameter in self.positional):
            return name
        rest = self.others if self.rest is None or not name.startswith(f"{self.rest.name}[") else self.rest
        return name if rest is None else rest.name

    def _compare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], places: list[Any], named: Mapping[str, Any]
    ) -> None:
        """Refuse what the function would get as something else, or without some of its fields."""
        pairs = [(self._name_of(index), value, places[index]) for index, value in enumerate(args)]
        pairs += [(name, value, named[name]) for name, value in kwargs.items()]
        for name, value, back in pairs:
            loss = loss_of(value, back, self._hints.get(name))
            if loss:
                raise self._invalid(name, f"{loss}; use a more precise annotation")

    @cached_property
    def _may_lose(self) -> bool:
        return any(may_lose(self._hints.get(parameter.name, Any)) for parameter in self.positional)

    @cached_property
    def _places_decoder(self) -> msgspec.json.Decoder[Any]:
        return self._args_decoder(len(self.positional))

    def _refuse_unwritable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        positional = [(self._name_of(index), value) for index, value in enumerate(args)]
        for name, value in [*positional, *kwargs.items()]:
            try:
                encode(value)
            except NOT_JSON as error:
                raise self._invalid(name, f"{error}") from None

    def argument(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The value of one parameter in a call."""
        if name in kwargs:
            return kwargs[name]
        for index, parameter in enumerate(self.positional):
            if parameter.name == name and index < len(args):
                return args[index]
        declared = self.named.get(name) or next(
            (parameter for parameter in self.positional if parameter.name == name), None
        )
        if declared is None:
            raise self._invalid(name, "the function has no such parameter")
        return None if declared.default is Parameter.empty else declared.default

    def normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """JSON that is the same for calls that mean the same, however they are written."""
        names = [parameter.name for parameter in self.positional]
        arguments: dict[str, Any] = dict(zip(names, args, strict=False)) | dict(kwargs)
        known = {
            parameter.name: parameter.default
            for parameter in self.named.values()
            if parameter.default is not Parameter.empty
        }
        return msgspec.json.encode([{**known, **arguments}, args[len(names) :]], order="sorted", enc_hook=encode_more)

    # from JSON to Python

    def decode(self, args: bytes, kwargs: bytes = NO_KWARGS) -> tuple[list[Any], dict[str, Any]]:
        """Arguments for the function, of the types that it asks for."""
        if args == NO_ARGS:
            values: list[Any] = []
        else:
            try:
                values = self._decode_args(args)
            except msgspec.MsgspecError as error:
                raise self._wrong(error) from None
        named = {} if kwargs == NO_KWARGS else self._decode_kwargs(kwargs, len(values))
        if named or self._has_required_named or len(values) < self._required_positional:
            self._require_all(len(values), named)
        return values, named

    def decode_call(
        self, args: bytes, kwargs: bytes, payload: bytes | None, first: bytes | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The same, with the bytes that travelled beside the JSON in their places, and `first` before all of it."""
        if payload is None:
            return self.decode(bound(first, args), kwargs)
        listed, named = _read_raw(args, list[msgspec.Raw], "args"), _read_raw(kwargs, dict[str, msgspec.Raw], "kwargs")
        pieces = _Pieces(payload)
        places = {index: data for index, value in enumerate(listed) if (data := pieces.of(value)) is not None}
        names = {name: data for name, value in named.items() if (data := pieces.of(value)) is not None}
        if pieces.end != len(payload):
            needed = f"its arguments need {pieces.end:,}"
            raise InvalidField(f"task {self.name!r}: it arrived with {len(payload):,} bytes, {needed}")
        emptied = b",".join(_EMPTY if index in places else bytes(value) for index, value in enumerate(listed))
        unnamed = {name: msgspec.Raw(_EMPTY) if name in names else value for name, value in named.items()}
        values, rest = self.decode(bound(first, b"[%b]" % emptied), msgspec.json.encode(unnamed))
        before = 0 if first is None else 1
        for index, data in places.items():
            values[before + index] = _as_kind(values[before + index], data)
        return values, {name: _as_kind(value, names[name]) if name in names else value for name, value in rest.items()}

    def with_bytes_of_parents(self, values: list[Any], results: list[bytes | None], *, is_list: bool) -> None:
        """Put what parents returned as bytes into the first argument, where its annotation does not ask for text."""
        kind = self._hints.get(self.positional[0].name if self.positional else "", Any)
        if not is_list:
            if results and results[0] is not None and takes_bytes(kind):
                values[0] = _as_kind(values[0], results[0])
        elif isinstance(values[0], list) and get_args(kind) in ((), (Any,)):
            values[0] = [value if data is None else data for value, data in zip(values[0], results, strict=True)]

    def _decode_args(self, args: bytes) -> list[Any]:
        count = len(self.positional)
        if self.rest is not None:
            count = max(count, len(msgspec.json.decode(args, type=list[msgspec.Raw])))
        args_decoder = self._decoders.get(count)
        if args_decoder is None:
            args_decoder = self._decoders[count] = self._args_decoder(count)
        values = list(msgspec.structs.astuple(args_decoder.decode(args)))
        while values and values[-1] is UNSET:
            values.pop()
        return values

    def _args_decoder(self, count: int) -> msgspec.json.Decoder[Any]:
        each_rest = [self.rest] * (count - len(self.positional)) if self.rest is not None else []
        kinds = [self._kind(parameter) for parameter in (*self.positional, *each_rest)]
        fields = [(f"a{index}", kind, UNSET) for index, kind in enumerate(kinds)]
        return decoder(msgspec.defstruct("Arguments", fields, array_like=True, forbid_unknown_fields=True))

    def _decode_kwargs(self, kwargs: bytes, taken: int) -> dict[str, Any]:
        try:
            raw = msgspec.json.decode(kwargs, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise self._wrong(error) from None
        before = {taken_parameter.name for taken_parameter in self.positional[:taken]}
        values = {}
        for name, data in raw.items():
            parameter = self.named.get(name, self.others)
            if parameter is None:
                raise self._invalid(name, f"the function has no such parameter; it has {self._signature()}")
            if name in before and name in self.named:
                raise self._invalid(name, "given twice, by position and by name")
            try:
                values[name] = self._decoder_of(parameter).decode(data)
            except msgspec.MsgspecError as error:
                raise self._wrong(error, name) from None
        return values

    def _decoder_of(self, parameter: Parameter) -> msgspec.json.Decoder[Any]:
        known = self._decoders_by_name.get(parameter.name)
        if known is None:
            known = self._decoders_by_name[parameter.name] = decoder(self._kind(parameter))
        return known

    def _kind(self, parameter: Parameter) -> Any:
        kind = self._hints.get(parameter.name, Any)
        try:
            return readable(kind)
        except TypeError as error:
            raise self._invalid(parameter.name, f"its annotation cannot be expressed in JSON: {error}") from None

    # refusals

    def _require_all(self, taken: int, named: Mapping[str, Any]) -> None:
        passed = {parameter.name for parameter in self.positional[:taken]}
        missing = [name for name in self._required_in_order() if name not in passed and name not in named]
        if missing:
            raise self._invalid(missing[0], f"missing; the function takes {self._signature()}")

    def _required_in_order(self) -> list[str]:
        names = dict.fromkeys([*(parameter.name for parameter in self.positional), *self.named])
        return [name for name in names if name in self.required]

    def _name_of(self, index: int) -> str:
        if index < len(self.positional):
            return self.positional[index].name
        return f"{self.rest.name}[{index - len(self.positional)}]" if self.rest is not None else f"[{index}]"

    def _signature(self) -> str:
        # Parameters that parents fill are not for the caller.
        shown = list(inspect.signature(self._function).parameters.values())[self._skip :]
        return str(
            inspect.Signature([parameter.replace(annotation=_Shown.of(parameter.annotation)) for parameter in shown])
        )

    def _invalid(self, name: str, problem: str) -> InvalidField:
        return InvalidField(f"task {self.name!r}, argument {name!r}: {problem}")

    def _wrong(self, error: msgspec.MsgspecError, name: str = "") -> InvalidField:
        """What msgspec said, with the parameter's name in the place of an index."""
        text = str(error)
        match = _PLACE.fullmatch(text)
        if not name and "array` of at most" in text and (match is None or not (match["rest"] or match["index"])):
            return InvalidField(f"task {self.name!r}: too many arguments; the function takes {self._signature()}")
        what = text if match is None else match["what"]
        what = what[:1].lower() + what[1:]
        if match is None:
            return self._invalid(name, what) if name else InvalidField(f"task {self.name!r}: {what}")
        if name:
            return self._invalid(name + _path(match), what)
        return self._invalid(self._name_of(int(match["index"] or 0)) + match["rest"], what)


def takes_bytes(kind: Any) -> bool:
    """Whether an annotation takes bytes as they are: it names them, or anything."""
    if get_origin(kind) is Annotated:
        return takes_bytes(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return any(map(takes_bytes, get_args(kind)))
    return kind is Any or kind in _BYTES


def _mark(value: bytes | bytearray | memoryview) -> dict[str, int]:
    return {BYTES_MARK: memoryview(value).nbytes}


def _as_kind(decoded: Any, data: bytes) -> Any:
    """Bytes of the kind that the annotation asked for."""
    if isinstance(decoded, bytearray):
        return bytearray(data)
    return memoryview(data) if isinstance(decoded, memoryview) else data


class _Pieces:
    """Cuts the bytes of a call into those of its arguments."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.end = 0

    def of(self, value: msgspec.Raw) -> bytes | None:
        """The bytes that an argument stands for; None for an ordinary one."""
        length = marked_bytes(value)
        if length is None:
            return None
        self.end += length
        return self._payload[self.end - length : self.end]


def _read_raw(json: bytes, kind: type[T], field: str) -> T:
    try:
        return msgspec.json.decode(json, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidField(f"{field}: {error}") from None


def _path(match: re.Match[str]) -> str:
    place = f"[{match['index']}]" if match["index"] is not None else f".{match['name']}" if match["name"] else ""
    return place + match["rest"]


def bound(first: bytes | None, args: bytes) -> bytes:
    """Arguments with what the parents gave in front of them."""
    if first is None:
        return args
    more = args.strip()[1:-1].strip()
    return b"[" + first + b"," + more + b"]" if more else b"[" + first + b"]"


def call_of(item: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """One item of `enqueue_many`: a tuple is positional arguments, a dict named ones, anything else the only one."""
    if type(item) is tuple:
        return item, {}
    return ((), item) if type(item) is dict else ((item,), {})
