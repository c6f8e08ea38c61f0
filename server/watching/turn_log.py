"""Write a log line for each turn: its stages, its costs and its end, without a word of what was said."""

from __future__ import annotations

import logging

from voxlane.server.log import line
from voxlane.server.watching.turn_account import MS, STAGES, TurnRecord
from voxlane.server.watching.watched_call import WatchedCall

logger = logging.getLogger(__name__)


def log_turn(call: WatchedCall, turn: TurnRecord) -> None:
    """Log one turn that is over."""
    if not logger.isEnabledFor(logging.INFO):
        return
    stages = dict(turn.stages)
    logger.info(
        line(
            "turn",
            session=call.session,
            turn=turn.number,
            dialect=call.dialect,
            tenant=call.tenant or None,
            end=turn.end,
            ms=round((turn.ended_ns - turn.began_ns) / MS),
            **{f"{name}_ms": round(stages[name]) if name in stages else None for name in STAGES},
            words=turn.words,
            reply_words=turn.reply_words,
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=turn.cached_tokens,
            output_tokens=turn.output_tokens,
            tools=turn.tools or None,
            barge_ins=turn.barge_ins or None,
            faults=turn.faults or None,
        )
    )
