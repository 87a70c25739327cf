"""Texts that someone else may have written: markup, escape sequences, and characters that break lines."""

import io
import re

PAYLOAD = "7;35m"  # a style that we print nowhere
HOSTILE = {
    "closing tag": "a[/]b",
    "style": "[red]x[/red]",
    "link": "[link=https://example.org]x[/link]",
    "emoji code": ":smile:",
    "title sequence": "\x1b]0;title\x07",
    "colour sequence": f"\x1b[{PAYLOAD}x",
    "C1 sequence": f"\x9b{PAYLOAD}x",
    "carriage return": "old\rnew",
    "backspace": "ab\x08\x08cd",
    "override": "\u202egnp.exe",
    "isolate": "\u2066x\u2069",
    "invalid byte": "\udcff",  # as an argument that is not UTF-8 is decoded
    "half a character": "\ud83d",  # as JSON can have it
    "line separator": "a\u2028b\x85c",
    "newline": "a\nregard: b",
    "formula": '=HYPERLINK("https://example.org")',
    "at": "@SUM(1+1)",
    "minus": "-1+1|cmd",
    "LaTeX": r"\input{/etc/passwd}$x_1^2$ #1 & 5% ~{}",
    "HTML": "<img src=x onerror=alert(1)>&amp;<script>alert(1)</script>",
    "Markdown": "a|b `c` *d* [e](javascript:alert(1)) \\",
}
ARGUMENTS = {name: text for name, text in HOSTILE.items() if "\ud83d" not in text}
EVERYTHING = " ".join(text for text in ARGUMENTS.values() if "\n" not in text)


class Terminal(io.StringIO):
    """Standard output or error that is a terminal."""

    def isatty(self) -> bool:
        return True

    def read_safe(self) -> str:
        """What was printed, without rich's own sequences: no control character of a text is among it."""
        printed = self.getvalue()
        assert not re.search(f"[\x1b\x9b]\\[?{PAYLOAD}", printed)
        plain = re.sub("\r?\x1b\\[[0-9?;]*[A-Zhlm]", "", printed)  # styles, and moves of the cursor
        assert not re.search(
            "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", plain
        )
        return plain
