"""The media store, from which clips are shown."""
