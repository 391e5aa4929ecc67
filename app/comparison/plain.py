"""Text that models and strangers wrote, made harmless for those who read it."""

from typing import Final

_CONTROL: Final = (*(code for code in range(0x20) if chr(code) not in "\n\t"), *range(0x7F, 0xA0))
_INVISIBLE: Final = (0x061C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
_VISIBLE: Final = {code: f"[U+{code:04X}]" for code in (*_CONTROL, *_INVISIBLE)}


def one_line(text: str, most: int) -> str:
    """A text for a terminal: one line of at most ``most`` characters, with nothing in it that a terminal obeys."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:most])
    return shown if len(text) <= most and len(shown) <= most else f"{shown[: most - 1]}\u2026"


def visible(text: str) -> str:
    """A text for a page: what has no shape, or turns the direction of writing, is shown by a name instead."""
    return text.encode(errors="replace").decode().translate(_VISIBLE)
