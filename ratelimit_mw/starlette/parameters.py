"""Finds the parameter of an endpoint that receives the request, by annotation or else by name."""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

from ratelimit_mw.core.signatures import signature_of


class RequestParameter(NamedTuple):
    """The place of the request among the arguments of an endpoint."""

    name: str
    number: int

    def of(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the request, or None if it was not passed."""
        if self.name in named:
            return named[self.name]
        return arguments[self.number] if self.number < len(arguments) else None


def request_parameter(
    function: Callable[..., Any], kinds: tuple[type, ...], names: Sequence[str]
) -> RequestParameter | None:
    """Return the parameter annotated as one of `kinds`, else one named in `names`, else None.

    A name counts only if the annotation is missing, is `Any`, or cannot be evaluated yet.
    """
    parameters = list(signature_of(function).parameters.values())
    scope = getattr(function, "__globals__", {})
    hints = [_hint(parameter, scope) for parameter in parameters]
    for index, (parameter, hint) in enumerate(zip(parameters, hints, strict=True)):
        if isinstance(hint, type) and issubclass(hint, kinds):
            return RequestParameter(parameter.name, index)
    for index, (parameter, hint) in enumerate(zip(parameters, hints, strict=True)):
        if parameter.name in names and hint is Any:
            return RequestParameter(parameter.name, index)
    return None


def _hint(parameter: Parameter, scope: Mapping[str, Any]) -> Any:
    """Return the evaluated annotation; `Any` if it is missing or cannot be evaluated, as under TYPE_CHECKING."""
    if parameter.annotation is Parameter.empty:
        return Any
    annotated = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return get_type_hints(annotated, globalns=dict(scope))["it"]
    except Exception:  # noqa: BLE001  # an annotation may be any expression
        return Any
