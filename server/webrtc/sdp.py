"""Session descriptions of WebRTC: what an offer may hold, and our addresses in an answer. Pure.

The addresses of an offer are left out: the client reaches us, and its first authenticated check shows where it is. So
no client can have the server send packets, or ask for names, of its choice. Only a relay (TURN) must know them before;
for clients whose offers have none it is told the address that the offer came from.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from voxlane.server.errors import InvalidRequest

MOST_CANDIDATES = 16
"""Addresses of an offer that a relay is told."""

MOST_LINES = 400
"""Lines of an offer: a browser's for one track and a data channel has about a hundred."""

MOST_OPUS_TYPES = 4
"""Payload types of Opus that are taken from an offer; browsers have one."""

LEAST_MESSAGE_BYTES = 65_536
"""Bytes of a message that a client must take: its own session comes back to it in one."""

_LINE_END = "\r\n"
_OPUS = re.compile(r"a=rtpmap:([0-9]{1,3}) opus/48000(/[12])?", re.IGNORECASE)
_SECURED = (
    re.compile(r"a=ice-ufrag:[A-Za-z0-9+/]{4,256}"),
    re.compile(r"a=ice-pwd:[A-Za-z0-9+/]{22,256}"),
    re.compile(r"a=setup:(actpass|active|passive)"),
    re.compile(r"a=fingerprint:sha-(256|384|512) [0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){31,63}"),
)


def checked_offer(offer: str, *, keep_addresses: bool) -> str:
    """Return an offer as the peer connection takes it; raise InvalidRequest if it is not one of a call."""
    lines = offer.strip().splitlines()  # as aiortc does: no line may hide in another
    if lines[:1] != ["v=0"]:
        raise InvalidRequest("The offer is not SDP: it must begin with v=0.", param="sdp")
    if len(lines) > MOST_LINES:
        raise InvalidRequest(f"The offer has more than {MOST_LINES} lines.", param="sdp")
    media = [line.split(" ")[0].removeprefix("m=") for line in lines if line.startswith("m=")]
    if sorted(media) not in (["application", "audio"], ["audio"]):
        raise InvalidRequest("The offer must have one audio track, and at most one data channel.", param="sdp")
    opus = [found[1] for line in lines if (found := _OPUS.fullmatch(line))][:MOST_OPUS_TYPES]
    if not opus:
        raise InvalidRequest("The offer must have Opus.", param="sdp")
    if not all(any(rule.fullmatch(line) for line in lines) for rule in _SECURED):
        raise InvalidRequest("The offer must have a=ice-ufrag, a=ice-pwd, a=setup and a=fingerprint.", param="sdp")
    if any(_is_small_channel(line) for line in lines):
        raise InvalidRequest(
            f"The offer's a=max-message-size must be 0 or at least {LEAST_MESSAGE_BYTES}.", param="sdp"
        )
    addresses = [line for line in lines if keep_addresses and _is_address(line)][:MOST_CANDIDATES]
    kept = [line for line in lines if line in addresses or _is_needed(line, opus)]
    return _LINE_END.join(kept) + _LINE_END


def _is_small_channel(line: str) -> bool:
    """Return whether a line allows only messages that are too small for our events; 0 allows any."""
    name, _, size = line.partition(":")
    if name != "a=max-message-size":
        return False
    return not re.fullmatch("[0-9]{1,19}", size) or 0 < int(size) < LEAST_MESSAGE_BYTES


def _is_needed(line: str, opus: Sequence[str]) -> bool:
    """Return whether the peer connection needs a line that is not an address.

    aiortc's work grows with the number of codecs times that of their other lines. A track of one sender needs no SSRCs.
    """
    if line.startswith(("a=rtpmap:", "a=fmtp:")):
        return line.split(" ")[0].partition(":")[2] in opus and (
            line.startswith("a=fmtp:") or bool(_OPUS.fullmatch(line))
        )
    return not line.startswith(("a=candidate:", "a=end-of-candidates", "a=rtcp-fb:", "a=ssrc"))


def _is_address(line: str) -> bool:
    """Return whether a line is a candidate with an IP address, not a name."""
    parts = line.split(" ")
    if not line.startswith("a=candidate:") or len(parts) < 6 or parts[2].lower() != "udp":
        return False
    try:
        ipaddress.ip_address(parts[4])
    except ValueError:
        return False
    return True


def has_data_channel(offer: str) -> bool:
    """Return whether an offer has a data channel."""
    return "\nm=application" in offer


def unused_servers(answer: str, servers: Sequence[str]) -> list[str]:
    """Return the STUN servers and relays of which an answer has no address: they did not answer, or refused us."""
    kinds = {server: "relay" if server.startswith("turn") else "srflx" for server in servers}
    return [server for server, kind in kinds.items() if f" typ {kind}" not in answer]


def relay_peers(client: str, relayed: str) -> list[str]:
    """Return the addresses that our relay lets in: the client's if the relay can reach it, and the relay's own."""
    own = ipaddress.ip_address(relayed)
    try:
        address = ipaddress.ip_address(client)
    except ValueError:  # the server listens on a socket without addresses
        return [relayed]
    address = getattr(address, "ipv4_mapped", None) or address
    return [str(address), relayed] if address.version == own.version and address != own else [relayed]


def with_addresses(answer: str, addresses: Sequence[str]) -> str:
    """Return an answer in which the public addresses stand for those of our network cards.

    Behind a NAT that forwards ports one to one the cards' addresses are of no use to a client.
    """
    if not addresses:
        return answer
    lines: list[str] = []
    for line in answer.split(_LINE_END):
        parts = line.split(" ")
        if not line.startswith("a=candidate:") or parts[6:8] != ["typ", "host"]:
            lines.append(line)
            continue
        version = ipaddress.ip_address(parts[4]).version
        same = [one for one in addresses if ipaddress.ip_address(one).version == version]
        for place, address in enumerate(same):
            public = [f"{parts[0]}{place}", *parts[1:4], address, *parts[5:]]
            lines.append(" ".join(public))
    return _LINE_END.join(lines)
