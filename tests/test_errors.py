"""User errors: one message that a user can read."""

from regard.errors import UserError


def test_a_message_has_an_end() -> None:
    assert str(UserError("x" * 3000)) == "x" * 3000
    message = str(UserError(f"mine.toml: got {'x' * 70_000}: give a number"))
    assert len(message) == 2005
    assert message.startswith("mine.toml: got x")
    assert " ... x" in message
    assert message.endswith("x: give a number")
