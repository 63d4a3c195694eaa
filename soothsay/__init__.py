"""soothsay: speech recognisers served faster, without changing one token of what they write."""

__version__ = "0.1.0"
