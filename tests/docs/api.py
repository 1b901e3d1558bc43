"""`python -m tests.docs.api` writes the table of docs/api.md from the signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cachecd_client
from cachecd_client.errors import CachecdError

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
BEGIN, END = "<!-- names: begin -->\n", "<!-- names: end -->\n"

#: The methods and properties that a training program calls. Other methods serve cachecd_client itself.
MEMBERS = {
    "Cache": "epochs numpy torch tf jax acquire tf_dataset input_fn report status exclude close endpoint",
    "Epoch": (
        "numpy torch tf jax to_dataset tf_dataset report files num_records num_bytes schema "
        "fingerprint window progress release"
    ),
    "Loader": (
        "set_epoch state_dict load_state_dict schema position seconds_waited bytes_read queue queue_filled "
        "corrupt close"
    ),
    "RunLoader": "state_dict load_state_dict epoch progress report close",
    "FileSet": "numpy torch tf jax to_dataset tf_dataset files num_records num_bytes schema window",
    "Schema": "select to_json from_json",
    "Ragged": "to_torch to_tf to_jax",
    "Bytes": "to_torch to_tf to_jax tolist view",
    "RaggedBytes": "to_tf",
}
#: Classes that a training program makes itself. Methods of a session make the others.
CONSTRUCTED = {"FileSet", "Image", "Schema", "Feature"}


def names() -> str:
    """The generated part of the page: a table for the functions and classes, and one for the errors."""
    values = {name: getattr(cachecd_client, name) for name in cachecd_client.__all__}
    errors = {n: v for n, v in values.items() if inspect.isclass(v) and issubclass(v, CachecdError)}
    lines = ["| Name | What it is |", "|---|---|"]
    for name in dict.fromkeys(["connect", *MEMBERS, *(n for n in values if n not in errors)]):
        made = name in CONSTRUCTED or not inspect.isclass(values[name])
        signature = _signature(values[name]) if made else ""
        lines.append(f"| **`{name}{signature}`** | {_sentence(values[name])} |")
        for member in MEMBERS.get(name, "").split():
            lines += _member(name, values[name], member)
    lines += ["", "| Error | Base | Meaning |", "|---|---|---|"]
    for name, error in errors.items():
        base = error.__bases__[0].__name__
        lines.append(f"| `{name}` | `{base}` | {_sentence(error)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    text = PAGE.read_text()
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n{names()}\n{END}{text.partition(END)[2]}"


def _member(owner: str, value: Any, member: str) -> Iterator[str]:
    found = inspect.getattr_static(value, member, None)
    shown = f"{'loader' if owner == 'RunLoader' else owner.lower()}.{member}"
    found = found.fget if isinstance(found, property) else found
    if inspect.getdoc(found):
        method = getattr(value, member)
        signature = (
            _signature(method) if inspect.isfunction(method) or inspect.ismethod(method) else ""
        )
        yield f"| `{shown}{signature}` | {_sentence(found)} |"
    else:
        yield f"| `{shown}` | {_commented(value, member)} |"


def _commented(value: type, member: str) -> str:
    """The comment of an attribute, `#: ...`, in the class or a base of it."""
    for base in value.__mro__[:-1]:
        if match := re.search(rf"#: (.+)\n\s+(?:self\.)?{member}\b", inspect.getsource(base)):
            return match[1]
    raise LookupError(f"{value.__name__}.{member} has neither a docstring nor a comment `#:`")


def _signature(value: Any) -> str:
    signature = inspect.signature(value)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _sentence(value: Any) -> str:
    """The first sentence of the docstring."""
    paragraph = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    sentence = re.split(r"(?<=[\w`)\]]\.) (?=[A-Z`])", paragraph)[0]
    sentence = sentence.replace("``", "`").replace("|", "\\|")
    if not sentence:
        raise LookupError(f"{value} has no docstring")
    return sentence if sentence.endswith(".") else f"{sentence}."


if __name__ == "__main__":
    PAGE.write_text(page())
