"""Names for those who come without one: easy to read, to say and to tell apart, and they tell nothing."""

import secrets

_COLOURS = (
    *("amber", "azure", "beige", "black", "blue", "bronze", "brown", "coral", "cream"),
    *("crimson", "cyan", "emerald", "golden", "green", "grey", "indigo", "ivory", "jade"),
    *("lemon", "lilac", "lime", "mauve", "navy", "ochre", "olive", "orange", "pearl"),
    *("pink", "plum", "purple", "red", "rose", "ruby", "silver", "teal", "white"),
)
_ANIMALS = (
    *("badger", "bear", "beaver", "bison", "camel", "crane", "deer", "dolphin", "dove"),
    *("duck", "eagle", "falcon", "finch", "fox", "frog", "gecko", "goose", "hare"),
    *("hawk", "heron", "horse", "ibis", "jaguar", "koala", "lark", "lemur", "lion"),
    *("llama", "lynx", "marten", "mole", "moose", "newt", "otter", "owl", "panda"),
    *("puffin", "quail", "rabbit", "raven", "robin", "salmon", "seal", "swan", "tapir"),
    *("tern", "tiger", "toad", "trout", "turtle", "walrus", "whale", "wolf", "wren"),
    *("yak", "zebra"),
)
_NUMBERS = 900


def pseudonym() -> str:
    """Return a random name, one of almost two million."""
    number = 100 + secrets.randbelow(_NUMBERS)
    return f"{secrets.choice(_COLOURS)}-{secrets.choice(_ANIMALS)}-{number}"
