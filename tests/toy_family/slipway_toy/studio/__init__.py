"""A view of the studio: the files of this package."""
