"""Edits of the history that a client asks for: place, show, cut or drop an item. Pure."""

from __future__ import annotations

from voxlane.server.conversation.client_events import CutItem, DropItem, PlaceItem, ShowItem
from voxlane.server.conversation.effects import Effect, Send
from voxlane.server.conversation.replies.answers import CALLS, NO_CALLS, Answers
from voxlane.server.conversation.server_events import Fault, ItemCut, ItemDropped, ItemPlaced, ItemShown
from voxlane.server.conversation.turns.floor import Floor
from voxlane.server.conversation.turns.pending_turns import MOST_CLIPS

Edit = PlaceItem | DropItem | ShowItem | CutItem


def edit(event: Edit, floor: Floor, answers: Answers, now: float) -> list[Effect]:
    """Edit the history as the client asks, or send a Fault that says why not."""
    history = answers.history
    match event:
        case PlaceItem(item=item, after=after):
            if item.id in history:
                return _refuse("item_create_duplicate_item_id", "there is an item of this id", event)
            if after and after not in history:
                return _refuse("item_create_invalid_previous_item_id", "there is no item to place it behind", event)
            if item.kind in CALLS and not answers.reads_calls:
                return _refuse("unsupported_item", NO_CALLS, event)
            if event.pcm and floor.pending.clips >= MOST_CLIPS:
                return _refuse("too_many_audio_items", "too many items of sound are not yet understood", event)
            if item.kind == "result":
                answers.open_calls.discard(item.call_id)
            # A prepared reply does not know this item: withdraw it.
            placed: list[Effect] = [*answers.withdraw(), Send(ItemPlaced(item, history.place(item, after)))]
            return [*placed, *floor.pending.listen_to(item.id, event.pcm)] if event.pcm else placed
        case DropItem(id=name):
            if name not in history:
                return _refuse("item_delete_invalid_item_id", "there is no item of this id", event)
            history.drop(name)
            return [*answers.withdraw(), Send(ItemDropped(name))]
        case ShowItem(id=name):
            item_or_none = history.get(name)
            if item_or_none is None:
                return _refuse("item_retrieve_invalid_item_id", "there is no item of this id", event)
            return [Send(ItemShown(answers.as_told(item_or_none, now)))]
        case CutItem(id=name, seconds=seconds):
            cut = answers.cut_at(name, seconds, now) if name in history else None
            if cut is None:
                return _refuse("item_truncate_invalid_item_id", "there is no spoken reply of this id", event)
            reply = answers.reply
            effects = floor.cut(now) if reply is not None and reply.item == name else answers.withdraw()
            heard, seconds = cut
            return [*effects, Send(ItemCut(name, seconds, heard))]


def _refuse(code: str, why: str, event: Edit) -> list[Effect]:
    return [Send(Fault(code, why, retryable=False, ref=event.ref))]
