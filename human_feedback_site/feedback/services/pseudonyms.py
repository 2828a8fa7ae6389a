"""Random pseudonyms for anonymous labelers: easy to read, say and tell apart."""

import secrets

_COLORS = (
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
    """Return a random name such as ``amber-otter-417``; almost two million are possible."""
    number = 100 + secrets.randbelow(_NUMBERS)
    return f"{secrets.choice(_COLORS)}-{secrets.choice(_ANIMALS)}-{number}"
