"""What goes wrong with the others, as exceptions that carry the sentence of the rank's `status` file."""
import errno
import os
import re
from typing import NamedTuple, Optional


class Member(NamedTuple):
    """A line of the job's `members`; node and pid are None for a rank that has not joined."""
    rank: int
    node: Optional[int]
    pid: Optional[int]
    state: str
    last: int


class FabricError(OSError):
    """An operation that failed, or was refused. The errno is the file's; str() is the sentence that says why."""

    status: str = ""                       # the line of `status`, whole
    missing: "tuple[Member, ...]" = ()     # the ranks it is about


class RanksMissing(FabricError, TimeoutError):
    """ETIMEDOUT: ranks did not come within the job's timeout."""


class RankLost(FabricError, ConnectionResetError):
    """ECONNRESET: the process of a rank has ended."""


class NodeLost(FabricError):
    """EHOSTDOWN or ENOLINK: a node, or the link to it, is gone."""


class Disagreement(FabricError):
    """EPROTO: ranks asked for different things."""


KINDS = {errno.ETIMEDOUT: RanksMissing, errno.ECONNRESET: RankLost, errno.EHOSTDOWN: NodeLost,
         errno.ENOLINK: NodeLost, errno.EPROTO: Disagreement}

NO_DAEMON = "the daemon has ended, and the job with it: start it (fabricfs MOUNT), then the script, again"
WHYS = {errno.ENOTCONN: NO_DAEMON, errno.ECONNABORTED: NO_DAEMON, errno.ESHUTDOWN: NO_DAEMON,
        errno.ENODEV: "the job, or this rank of it, was removed"}  # what no status can say


def words(line: str) -> "dict[str, str]":
    """key=value words; a value in quotes may hold blanks."""
    return {key: value.strip('"') for key, value in re.findall(r'(\w+)=("[^"]*"|\S+)', line)}


def members(text: str) -> "list[Member]":
    """The lines of a `members` file."""
    def number(text: str) -> Optional[int]:
        return None if text == "-" else int(text)
    return [Member(int(w["rank"]), number(w["node"]), number(w["pid"]), w["state"], int(w["last"]))
            for w in map(words, text.splitlines())]


def failure(number: int, what: str, status: str = "", of: "list[Member]" = []) -> FabricError:
    """The exception for an errno. what: the operation in words; status: its line; of: the job's members now."""
    said = words(status)
    why = said.get("why") or WHYS.get(number) or os.strerror(number)
    if said.get("buffer") == "undefined":
        why += "; the buffer holds neither input nor result"
    if number == errno.EPROTO:
        why = why.replace("asked barrier", "asked barrier (as a rank that leaves does)")
    error = KINDS.get(number, FabricError)(number, f"{what}: {why}")
    missing = {int(rank) for rank in said.get("missing", "").split(",") if rank.isdecimal()}
    error.status, error.missing = status, tuple(member for member in of if member.rank in missing)
    return error
