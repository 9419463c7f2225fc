"""Messages of a conversation that the chat template would leave out: refused, never lost."""

from __future__ import annotations

import pytest

from common.errors import InvalidField
from tests.support.fake_tokenizers import byte_level_tokenizer, files_of, vocabulary
from tests.vocabulary.conversations import chatting, theirs


@pytest.mark.parametrize("content", ["be nice", ""])
@pytest.mark.parametrize("role", ["developer", "", "assistant ", "User", "x" * 99])
def test_a_message_that_the_template_leaves_out_is_refused_by_its_role(
    role: str, content: str
) -> None:
    turns = [("user", "x"), (role, content), ("user", "y")]
    with pytest.raises(
        InvalidField, match=r"chat\.messages\[1\]\.role is '.*it must be one whose"
    ) as caught:
        chatting("knowing").render_chat(turns)
    assert caught.value.field == "chat.messages[1].role" and repr(role[:60]) in str(caught.value)
    with pytest.raises(InvalidField):
        chatting("knowing").render_chat(turns, trusted=True)
    assert b"be nice" in chatting("chatml").bytes_of(
        chatting("chatml").render_chat([(role, "be nice")])
    )


def test_a_message_in_a_place_that_the_template_skips_is_refused_too() -> None:
    first = "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    first += "{% for m in messages if m.role != 'system' %}{{ m.content }}\n{% endfor %}"
    voc = vocabulary(files_of(byte_level_tokenizer(), chat_template=first))
    turns = [("system", "a"), ("user", "b"), ("assistant", "")]
    assert voc.render_chat(turns) == theirs(voc, turns)
    with pytest.raises(InvalidField, match=r"chat\.messages\[3\]\.role is 'system'"):
        voc.render_chat([*turns, ("system", "c")])
