"""Who may do what: each key has a role, and a role has rights. Pure.

| role     | rights                                                                          |
|----------|---------------------------------------------------------------------------------|
| viewer   | read tables                                                                     |
| operator | read tables, send control messages; write tables if no key is a pipeline's      |
| pipeline | write tables, and nothing else                                                  |

An operator may write where no pipeline has a key of its own: server and pipeline that were started with one
LIVETABLES_TOKEN have only that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from livetables.model.errors import RequestError

Role = Literal["viewer", "operator", "pipeline"]
Right = Literal["read", "control", "write"]

ROLES: tuple[Role, ...] = get_args(Role)
RIGHTS: Mapping[Role, frozenset[Right]] = {
    "viewer": frozenset({"read"}),
    "operator": frozenset({"read", "control"}),
    "pipeline": frozenset({"write"}),
}
NEEDED: Mapping[Right, Role] = {"read": "viewer", "control": "operator", "write": "pipeline"}  # the lowest that has it
WHAT: Mapping[Right, str] = {"read": "reading tables", "control": "sending control messages", "write": "writing tables"}
VARIABLES: Mapping[Role, str] = {
    "viewer": "LIVETABLES_VIEWER_TOKEN",
    "operator": "LIVETABLES_TOKEN",
    "pipeline": "LIVETABLES_PIPELINE_TOKEN",
}


@dataclass(frozen=True)
class RoleKey:
    """A key and its role."""

    token: str = field(repr=False)
    role: Role = "operator"


def role_key(line: str) -> RoleKey:
    """Return the key in a line like `viewer KEY`. A line without a role is an operator's key."""
    role, _, rest = line.strip().replace("\t", " ").partition(" ")
    for each in ROLES:
        if role.lower() == each and rest.strip():
            return RoleKey(rest.strip(), each)
    return RoleKey(line.strip())


def has_right(role: Role, right: Right, roles: Collection[Role]) -> bool:
    """Whether a role has a right, on a server whose keys have these roles."""
    return right in RIGHTS[role] or (role == "operator" and right == "write" and "pipeline" not in roles)


def refusal(role: Role, right: Right) -> RequestError:
    """Return the error for a client whose role does not have a right."""
    needed = NEEDED[right]
    also = ", or an operator's" if right == "read" else ""
    return RequestError(
        "forbidden",
        f"{WHAT[right]} needs the role {needed}; this key has the role {role}",
        f"send a key with the role {needed} ({VARIABLES[needed]} of the server){also}",
    )
