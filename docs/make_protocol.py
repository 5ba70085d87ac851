"""Writes the tables of PROTOCOL.md from the code: ops, limits, codes, filters. Must not hold any text of its own twice.

python docs/make_protocol.py           write the tables again
python docs/make_protocol.py --check   exit 1 when they differ from the code
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import NODEFAULT
from msgspec.structs import fields

from statesvc.store.queries import SORTS, Filter
from statesvc_client import errors, wire

PAGE = Path(__file__).with_name("PROTOCOL.md")
_EVERYWHERE = {field.encode_name for field in fields(wire.Request)}
_NUMBERED = {field.encode_name for field in fields(wire.Write)} - _EVERYWHERE


def _code(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def ops() -> list[str]:
    rows = ["| op | what it is for | fields | reply | codes |", "|---|---|---|---|---|"]
    for op, cls in wire.OPS.items():
        own = [field.encode_name for field in fields(cls) if field.encode_name not in _EVERYWHERE | _NUMBERED]
        numbering = ["the numbering"] if issubclass(cls, wire.Write) else []
        given = " and ".join([*([_code(own)] if own else []), *numbering])
        rows.append(
            f"| `{op}` | {cls.purpose} | {given} | {_code(list(cls.reply_fields))} | {_code(list(cls.codes))} |"
        )
    return rows


def limits() -> list[str]:
    rows = ["| limit | default |", "|---|---|"]
    rows += [f"| `{field.encode_name}` | {field.default:,} |" for field in fields(wire.Limits)]
    return rows


def codes() -> list[str]:
    rows = ["| code | whose fault | send again later |", "|---|---|---|"]
    fault = {
        errors.RequestFault: "the request",
        errors.Refusal: "the state of the record",
        errors.ServiceFault: "the daemon or its disk",
    }
    for code, cls in errors.BY_CODE.items():
        whose = next(text for parent, text in fault.items() if issubclass(cls, parent))
        rows.append(f"| `{code}` | {whose} | {'yes' if cls.retryable else 'no'} |")
    return rows


def filters() -> list[str]:
    rows = ["| filter | holds |", "|---|---|"]
    for field in fields(Filter):
        assert field.default is not NODEFAULT  # noqa: S101 - every filter is optional
        kind = str(field.type).replace("typing.", "").replace(" | None", "").removeprefix("<class '").removesuffix("'>")
        rows.append(f"| `{field.encode_name}` | `{kind}` |")
    return rows


def sorts() -> list[str]:
    return [f"Sort keys, in any case: {_code(list(SORTS))}."]


TABLES = {"ops": ops, "limits": limits, "codes": codes, "filters": filters, "sorts": sorts}


def filled(text: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        table = "\n".join(make())
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, found = re.subn(
            pattern, lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text, flags=re.DOTALL
        )
        if found != 1:
            raise SystemExit(f"{PAGE.name} needs exactly one place for the table {name}, not {found}")
    return text


def main() -> None:
    text = PAGE.read_text()
    if "--check" not in sys.argv:
        PAGE.write_text(filled(text))
    elif filled(text) != text:
        raise SystemExit(f"{PAGE.name} differs from the code: run python docs/make_protocol.py")


if __name__ == "__main__":
    main()
