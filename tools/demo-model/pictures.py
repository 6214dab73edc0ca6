"""The pictures that the demo model's encoder learns from: one to three things in plain colours, and what there is to say about them.

A picture is a list of `Thing`; `draw` draws many at once, on any device, without a font or a file. `chat` makes a question and its answer.
"""

import functools
import math
from dataclasses import dataclass

import torch

import corpus

COLOURS = {"red": (0.86, 0.12, 0.14), "blue": (0.14, 0.28, 0.86), "green": (0.12, 0.62, 0.22), "yellow": (0.98, 0.86, 0.14), "white": (0.99, 0.99, 0.99),
           "black": (0.06, 0.06, 0.07), "brown": (0.48, 0.28, 0.12), "orange": (0.98, 0.54, 0.08), "purple": (0.52, 0.18, 0.68), "pink": (0.98, 0.56, 0.74),
           "grey": (0.52, 0.53, 0.55)}
GROUNDS = [(0.97, 0.97, 0.96), (0.74, 0.88, 0.99), (0.86, 0.96, 0.84), (0.99, 0.95, 0.82), (0.95, 0.88, 0.96), (0.10, 0.12, 0.26), (0.30, 0.34, 0.38)]
CONTRAST = 0.42  # between a thing and what is behind it


def disc(x, y, size):
    return lambda u, v: torch.hypot(u - x, v - y) < size


def box(left, top, right, bottom):
    return lambda u, v: (u > left) & (u < right) & (v > top) & (v < bottom)


def either(*shapes):
    return lambda u, v: functools.reduce(torch.logical_or, (shape(u, v) for shape in shapes))


def both(*shapes):
    return lambda u, v: functools.reduce(torch.logical_and, (shape(u, v) for shape in shapes))


def without(shape, *holes):
    return lambda u, v: shape(u, v) & ~either(*holes)(u, v)


def ring(x, y, inner, outer):
    return without(disc(x, y, outer), disc(x, y, inner))


def star(u, v):
    """A star's edge goes from its points to its corners, which are nearer to the middle."""
    fifth = 2 * math.pi / 5
    turn = torch.remainder(torch.atan2(u, -v) + fifth / 2, fifth) - fifth / 2
    return torch.hypot(u, v) < 0.42 + 0.58 * (1 - (2 * turn / fifth).abs()) ** 1.4


# Whether a point belongs to a thing. `u` goes to the right and `v` down, from -1 to 1.
SHAPES = {
    "ball": disc(0, 0, 0.95),
    "ring": ring(0, 0, 0.6, 0.95),
    "star": star,
    "moon": without(disc(0, 0, 0.95), disc(0.45, -0.1, 0.78)),
    "kite": lambda u, v: u.abs() / 0.66 + (v + 0.15).abs() / torch.where(v < -0.15, 0.6, 1.1) < 1,
    "boat": either(both(box(-1, 0.3, 1, 0.85), lambda u, v: u.abs() < 1.1 - (v - 0.1) * 0.7), box(-0.06, -0.95, 0.02, 0.3),
                   lambda u, v: (u > 0.02) & (u < 0.75 * (v + 0.95) / 1.1) & (v < 0.18)),
    "house": either(without(box(-0.7, -0.1, 0.7, 0.9), box(-0.16, 0.35, 0.2, 0.9)), lambda u, v: (u.abs() < (v + 0.95) * 1.1) & (v < -0.1)),
    "flower": either(disc(0, 0, 0.1), without(lambda u, v: torch.hypot(u, v) < 0.6 + 0.35 * torch.cos(6 * torch.atan2(u, -v)), disc(0, 0, 0.2))),
    "cloud": either(disc(-0.5, 0.2, 0.42), disc(0.05, -0.1, 0.56), disc(0.55, 0.2, 0.4), box(-0.5, 0.2, 0.55, 0.6)),
    "hat": either(box(-1, 0.35, 1, 0.65), box(-0.55, -0.75, 0.55, 0.4)),
    "cup": either(box(-0.75, -0.6, 0.4, 0.8), both(ring(0.45, 0.05, 0.25, 0.45), box(0.3, -1, 1, 1))),
    "balloon": either(lambda u, v: (u / 0.62) ** 2 + ((v + 0.3) / 0.68) ** 2 < 1, box(-0.04, 0.3, 0.04, 1)),
    "button": without(disc(0, 0, 0.95), *(disc(x, y, 0.16) for x in (-0.3, 0.3) for y in (-0.3, 0.3))),
    "umbrella": either(both(disc(0, 0, 0.98), box(-1, -1, 1, -0.05)), box(-0.06, -0.1, 0.06, 0.8), both(ring(0.16, 0.75, 0.12, 0.22), box(-1, 0.75, 1, 1))),
    "key": either(ring(-0.55, 0, 0.22, 0.42), box(-0.2, -0.1, 1, 0.1), box(0.55, 0.05, 0.7, 0.4), box(0.82, 0.05, 0.97, 0.32)),
}
KINDS = sorted(SHAPES)


@dataclass
class Thing:
    """A thing of a picture: what it is, and where (from 0 to 1)."""
    kind: str
    colour: str
    x: float
    y: float
    size: float


def far(a, b):
    return math.dist(a, b) > CONTRAST


def picture(r):
    """One to three things on a ground, none before another: (ground, things from left to right)."""
    ground = r.choice(GROUNDS)
    fitting = [c for c in COLOURS if far(COLOURS[c], ground)]
    count = r.choice([1, 1, 1, 2, 2, 3])
    things = []
    for number in range(count):
        width = 1 / count
        size = r.uniform(0.30, 0.46) if count == 1 else r.uniform(0.36, 0.48) * width
        room = max(0.0, width / 2 - size)
        x = width * (number + 0.5) + r.uniform(-room, room)
        y = r.uniform(size, 1 - size)
        things.append(Thing(r.choice(KINDS), r.choice(fitting), x, y, size))
    return ground, things


def numbers(pictures):
    """The pictures as tensors: kinds (-1: nothing), colours with small variations, places; grounds."""
    n = len(pictures)
    kinds, places, colours, grounds = torch.full((n, 3), -1), torch.ones(n, 3, 3), torch.zeros(n, 3, 3), torch.zeros(n, 3)
    for i, (ground, things) in enumerate(pictures):
        grounds[i] = torch.tensor(ground)
        for j, thing in enumerate(things):
            kinds[i, j] = KINDS.index(thing.kind)
            places[i, j] = torch.tensor([thing.x, thing.y, thing.size])
            colours[i, j] = torch.tensor(COLOURS[thing.colour])
    return kinds, places, colours, grounds


def draw(kinds, places, colours, grounds, side, finer=2):
    """Pictures of `side` pixels: [n][3][side][side], from 0 to 1. Edges are smooth: each pixel is the mean of finer ones."""
    fine = side * finer
    at = (torch.arange(fine, device=kinds.device) + 0.5) / fine
    image = grounds[:, :, None, None].repeat(1, 1, fine, fine)
    for j in range(kinds.shape[1]):
        for number, kind in enumerate(KINDS):
            own = (kinds[:, j] == number).nonzero()[:, 0]
            x, y, size = (places[own, j, k, None, None] for k in range(3))
            inside = SHAPES[kind]((at[None, None, :] - x) / size, (at[None, :, None] - y) / size)
            image[own] = torch.where(inside[:, None], colours[own, j, :, None, None], image[own])
    return torch.nn.functional.avg_pool2d(image, finer)


def listed(things):
    names = [corpus.an(f"{t.colour} {t.kind}") for t in things]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


WHAT = ["What is in the picture?", "What do you see?", "What do you see in the picture?", "Describe the picture.", "What is this?", "What is in this picture?", "Describe this picture."]
STORY = ["Tell me a story about the picture.", "Tell me a story about this picture.", "Write a short story about this.", "Tell me a story."]


def chat(r, things):
    """A question about a picture, and its answer."""
    way = r.random()
    if way < 0.55:
        return r.choice(WHAT), corpus.upper(listed(things)) + "."
    if way < 0.75:
        kinds = [t.kind for t in things]
        once = [t for t in things if kinds.count(t.kind) == 1]
        if once:
            thing = r.choice(once)
            return f"What colour is the {thing.kind}?", f"The {thing.kind} is {thing.colour}."
    if way < 0.85:
        count = corpus.NUMBERS[len(things)]
        return "How many things are in the picture?", f"There {'is' if len(things) == 1 else 'are'} {count} thing{'s' if len(things) > 1 else ''} in the picture."
    thing = r.choice(things)
    return r.choice(STORY), corpus.tell(r, corpus.scene(r, plot_name="lost", obj=thing.kind, colour=thing.colour))


EXAMPLES = {"red-ball": (GROUNDS[0], [Thing("ball", "red", 0.5, 0.52, 0.4)]),
            "kite-and-boat": (GROUNDS[1], [Thing("kite", "yellow", 0.27, 0.32, 0.24), Thing("boat", "red", 0.72, 0.66, 0.24)]),
            "umbrella": (GROUNDS[3], [Thing("umbrella", "purple", 0.5, 0.5, 0.42)])}


def main():
    """Writes the examples as PNG files of 256 pixels."""
    import sys
    from pathlib import Path
    from PIL import Image
    images = draw(*numbers(list(EXAMPLES.values())), 256)
    for name, image in zip(EXAMPLES, images):
        Image.fromarray((image.permute(1, 2, 0) * 255).round().byte().numpy()).save(Path(sys.argv[1]) / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
