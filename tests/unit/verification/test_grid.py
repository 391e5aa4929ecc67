"""Which pass decides which position."""

from typing import Any

import pytest

from app.verification.grid import Grid, GridKind, Pass

CHAIN: dict[str, Any] = {"window": 32, "prompt": 300, "length": 1000, "block": 128, "prefix_caching": True}


@pytest.mark.parametrize(
    ("window", "block", "prefix_caching", "kind"),
    [
        (128, 128, True, GridKind.CHAIN),
        (32, 128, True, GridKind.CHAIN),
        (1, 16, True, GridKind.CHAIN),
        (128, 128, False, GridKind.PROMPT),
        (48, 128, True, GridKind.PROMPT),
        (256, 128, True, GridKind.PROMPT),
    ],
)
def test_posture_and_window_alone_choose_the_grid(
    window: int, block: int, prefix_caching: bool, kind: GridKind
) -> None:
    """The chain needs a cache and a window that divides the block."""
    assert kind is Grid.of(window, 10, 1000, block, prefix_caching=prefix_caching).kind


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (100, Pass(132, None, 0, 100, 131)),
        (131, Pass(132, None, 0, 100, 131)),
        (132, Pass(164, None, 0, 132, 163)),
        (163, Pass(164, None, 0, 132, 163)),
        (164, Pass(169, None, 0, 164, 169)),
        (169, Pass(169, None, 0, 164, 169)),
    ],
)
def test_windows_of_a_prompt_grid(position: int, expected: Pass) -> None:
    """Windows begin at the prompt's end; at the model's limit of 170 the row after the last token decides too."""
    assert expected == Grid.of(32, 100, 170, 128, prefix_caching=False).deciding(position)


def test_the_last_place_has_a_pass_of_its_own_where_a_window_ends_before_it() -> None:
    """A window that ends at L-1 leaves one position, which the row after the last token decides."""
    grid = Grid.of(32, 100, 165, 128, prefix_caching=False)
    assert grid.deciding(163) == Pass(164, None, 0, 132, 163)
    assert grid.deciding(164) == Pass(164, None, 0, 164, 164)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (300, Pass(320, 256, 256, 300, 320)),
        (320, Pass(320, 256, 256, 300, 320)),
        (321, Pass(352, 256, 256, 321, 352)),
        (384, Pass(384, 256, 256, 353, 384)),
        (385, Pass(416, 384, 256, 385, 416)),
        (991, Pass(992, 896, 256, 961, 992)),
        (993, Pass(999, 896, 256, 993, 999)),
        (999, Pass(999, 896, 256, 993, 999)),
    ],
)
def test_windows_of_a_chain(position: int, expected: Pass) -> None:
    """Windows end at multiples of 32, and a pass reads the whole blocks of 128 before its last token."""
    assert expected == Grid.of(**CHAIN).deciding(position)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (1, Pass(128, 0, 0, 1, 128)),
        (127, Pass(128, 0, 0, 127, 128)),
        (128, Pass(128, 0, 0, 128, 128)),
        (129, Pass(256, 128, 128, 129, 256)),
        (256, Pass(256, 128, 128, 256, 256)),
    ],
)
def test_the_first_window_of_a_chain(prompt: int, expected: Pass) -> None:
    """It is short where the prompt ends inside a block, and the last block of a prompt is never read."""
    grid = Grid.of(128, prompt, 1000, 128, prefix_caching=True)
    assert grid.kind is GridKind.CHAIN
    assert expected == grid.deciding(prompt)


@pytest.mark.parametrize("position", [0, 299, 1000])
def test_other_positions_have_no_pass(position: int) -> None:
    """The prompt is given, and nothing comes after the model's length."""
    with pytest.raises(ValueError, match=f"position {position} is not in 300 to 999"):
        Grid.of(**CHAIN).deciding(position)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"window": 0}, "one token at least"),
        ({"block": 0}, "one token at least"),
        ({"prompt": 0}, "leaves room"),
        ({"prompt": 1000}, "leaves room"),
    ],
)
def test_a_grid_without_room_is_refused(changed: dict[str, int], words: str) -> None:
    """Sizes below one, and a prompt that leaves no place for a token."""
    with pytest.raises(ValueError, match=words):
        Grid.of(**CHAIN | changed)


def test_a_chain_with_windows_over_the_edge_of_a_block_is_refused() -> None:
    """Such a pass would read a block that an earlier try of itself wrote."""
    with pytest.raises(ValueError, match="divides"):
        Grid(GridKind.CHAIN, 48, 10, 1000, 128)
