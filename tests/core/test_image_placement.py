"""Where crops lie: the arithmetic of torchvision v2's transforms, transcribed from its sources."""

import math

import pytest

from cachecd_client import _core
from cachecd_client.errors import SchemaError

PICTURES = [(256, 256), (375, 500), (500, 333), (1, 1), (17, 900), (4000, 3), (224, 225)]  # h, w
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


class Draws:
    """SplitMix64, from the key on."""

    def __init__(self, key):
        self.state = mix((key + GOLDEN) & MASK)

    def next(self):
        self.state = (self.state + GOLDEN) & MASK
        return mix(self.state)

    def uniform(self, low, high):
        return low + (high - low) * ((self.next() >> 11) / 2**53)

    def below(self, limit):
        return (self.next() >> 32) * limit >> 32


def random_resized_crop(draws, height, width, scale, ratio):
    """RandomResizedCrop.make_params."""
    area = height * width
    log_ratio = [math.log(bound) for bound in ratio]
    for _ in range(10):
        target_area = area * draws.uniform(*scale)
        aspect_ratio = math.exp(draws.uniform(*log_ratio))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            top = draws.below(height - h + 1)
            return top, draws.below(width - w + 1), h, w
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, round(width / min(ratio))
    elif in_ratio > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def resize(height, width, shorter):
    """Resize(shorter), of the two sides."""
    longer = int(shorter * max(height, width) / min(height, width))
    return (longer, shorter) if width <= height else (shorter, longer)


@pytest.mark.parametrize(("height", "width"), PICTURES)
@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1), (3 / 4, 4 / 3)), ((0.9, 1), (0.5, 0.6)), ((0.5, 3), (1, 1))]
)
def test_random_crops_are_torchvisions(height, width, scale, ratio):
    options = {"crop": "random", "height": 224, "width": 200, "flip": 0.3, "scale": scale}
    for key in [*range(50), MASK]:
        draws = Draws(key)
        flip = draws.uniform(0, 1) < 0.3
        top, left, h, w = random_resized_crop(draws, height, width, scale, ratio)
        # Where rounding leaves no pixel, torchvision fails.
        expected = (top, left, max(h, 1), max(w, 1)), (224, 200), (0, 0, 224, 200), flip
        assert _core.place_image({**options, "ratio": ratio}, height, width, key) == expected


@pytest.mark.parametrize(("height", "width"), [(256, 256), (224, 500), (500, 200)])
def test_random_cuts_are_torchvisions(height, width):
    options = {"crop": "random", "resized": False, "height": 224, "width": 200, "flip": 0.5}
    for key in range(200):
        draws = Draws(key)
        flip = draws.uniform(0, 1) < 0.5
        top = draws.below(height - 224 + 1)
        box = top, draws.below(width - 200 + 1), 224, 200
        found = _core.place_image(options, height, width, key)
        assert found == (box, (224, 200), (0, 0, 224, 200), flip)


@pytest.mark.parametrize(
    ("height", "width"), [p for p in PICTURES if p != (4000, 3)] + [(301, 999)]
)
@pytest.mark.parametrize("shorter", [0, 256, 257])
@pytest.mark.parametrize("size", [(224, 224), (192, 224), (225, 100)])
def test_center_crops_are_torchvisions(height, width, shorter, size):
    options = {"crop": "center", "height": size[0], "width": size[1], "shorter": shorter}
    box, scaled, part, flip = _core.place_image(options, height, width, 7)
    if shorter:
        assert scaled == resize(height, width, shorter)
    else:
        covering = [
            s for s in range(1, 400) if all(map(int.__ge__, resize(height, width, s), size))
        ]
        assert scaled == resize(height, width, covering[0])
    # Python's round is to even.
    expected = [round((scaled[axis] - size[axis]) / 2.0) for axis in (0, 1)]
    assert (box, part, flip) == ((0, 0, height, width), (*expected, *size), False)


@pytest.mark.parametrize(
    ("options", "height", "width", "why"),
    [
        ({"crop": "random", "resized": False, "height": 224, "width": 224}, 223, 500,
         "223 x 500 pixels, too small to cut 224 x 224 pixels"),
        ({"crop": "center", "height": 224, "width": 224, "shorter": 200}, 100, 200,
         "200 x 400 pixels after scaling, too small to cut"),
        ({"crop": "none", "shorter": 200, "max_pixels": 10**6}, 1, 100, "becomes 200 x 20000"),
        ({"crop": "none", "shorter": 10**6}, 1, 10**6, "too narrow"),
        ({"crop": "none", "shorter": 1}, 0, 5, "no pixels"),
    ],
)  # fmt: skip
def test_placements_that_cannot_be_are_refused(options, height, width, why):
    with pytest.raises(SchemaError, match=why):
        _core.place_image(options, height, width, 0)
